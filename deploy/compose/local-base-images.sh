#!/usr/bin/env bash
# Makes the two base images of the Dockerfiles from Debian packages and this
# machine's Go, for machines that cannot pull images:
#
#   debian:bookworm-slim     debootstrap's minimal system
#   golang:1.26-bookworm     the same with this machine's Go in /usr/local/go
#
# Images that are there already are left alone. Needs root, docker, debootstrap
# and Go. The Dockerfiles are the same wherever they are built.
set -euo pipefail

debian=debian:bookworm-slim
golang=golang:1.26-bookworm

have() { docker image inspect "$1" >/dev/null 2>&1; }

if have $debian && have $golang; then
	exit 0
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >&2
# Certificates of this machine's own networks, which builds go through too.
if [[ -f /etc/ssl/certs/ca-certificates.crt ]]; then
	rm -f "$root/etc/ssl/certs/ca-certificates.crt"
	cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
fi
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,info,locale}/*

have $debian || tar -C "$root" -c . | docker import --change 'CMD ["bash"]' - $debian >&2

if ! have $golang; then
	goroot=$(go env GOROOT)
	mkdir -p "$root/usr/local/go" "$root/go"
	tar -C "$goroot" --exclude=./test --exclude=./api -c . | tar -C "$root/usr/local/go" -x
	tar -C "$root" -c . | docker import \
		--change 'ENV PATH=/go/bin:/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
		--change 'ENV GOPATH=/go GOTOOLCHAIN=local' \
		--change 'WORKDIR /go' \
		- $golang >&2
fi

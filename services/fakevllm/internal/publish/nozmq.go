//go:build !cgo

package publish

import "errors"

func open(Config) (sockets, string, string, error) {
	return nil, "", "", errors.New("built without libzmq: install it (apt-get install libzmq3-dev pkg-config) and build with CGO_ENABLED=1, or run with events off")
}

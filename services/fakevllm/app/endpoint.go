package app

import (
	"net/netip"
	"strings"
)

// reachable replaces a wildcard host of a ZMQ endpoint by the address of the
// HTTP API, so that it can be connected to.
func (a *App) reachable(endpoint string) string {
	rest, isTCP := strings.CutPrefix(endpoint, "tcp://")
	colon := strings.LastIndex(rest, ":")
	if !isTCP || colon < 0 {
		return endpoint
	}
	host := strings.Trim(rest[:colon], "[]")
	if ip, err := netip.ParseAddr(host); host != "*" && (err != nil || !ip.IsUnspecified()) {
		return endpoint
	}
	ip := a.address().Addr().String()
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return "tcp://" + ip + rest[colon:]
}

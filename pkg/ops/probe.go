package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// probeTimeout is how long a probe waits for its answer.
const probeTimeout = 2 * time.Second

// CutProbe reports whether a program was called as "PROGRAM probe FLAG...", and
// returns the flags. A container without a shell asks for its health this way:
// the program itself, with the configuration that it serves with.
func CutProbe(args []string) (flags []string, probe bool) {
	if len(args) > 0 && args[0] == "probe" {
		return args[1:], true
	}
	return args, false
}

// Probe asks for path on a listener's address once. It returns nil if the
// answer is 200; a wildcard host means this machine.
func Probe(ctx context.Context, addr, path string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("probe %q: %w", addr, err)
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(host, port) + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 500))
	err = errors.Join(err, resp.Body.Close())
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("probe: %s answered %d: %s", url, resp.StatusCode, strings.TrimSpace(string(text)))
	}
	return err
}

//go:build compose

package compose

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prefixroute/prefixroute/e2e/harness"
)

// project keeps the test's containers apart from those of somebody who works on
// the same machine.
const project = "prefixroute-e2e"

// stack is the system of docker-compose.yml, on ports of the test's own.
type stack struct {
	env   []string
	ports map[string]string // by the variable that sets it
}

// up starts everything from images that were built before, and removes all of
// it, volumes included, when the test ends.
func up(t *testing.T) *stack {
	t.Helper()
	s := &stack{env: os.Environ(), ports: map[string]string{}}
	for _, v := range []string{"PORT", "STATUS_PORT", "APPROXIMATE_PORT", "SIM_A_PORT", "SIM_B_PORT", "SIM_C_PORT", "INDEXER_PORT"} {
		_, port, _ := strings.Cut(harness.FreeAddr(t), ":")
		s.ports[v] = port
		s.env = append(s.env, "PREFIXROUTE_"+v+"="+port)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if out, err := s.run(context.Background(), "docker-compose", "logs", "--no-color", "--tail", "40"); err == nil {
				t.Logf("logs:\n%s", out)
			}
		}
		if out, err := s.run(context.Background(), "docker-compose", "down", "--volumes", "--timeout", "5"); err != nil {
			t.Errorf("take the system down: %v\n%s", err, out)
		}
	})
	s.compose(t, "up", "--detach", "--no-build")
	return s
}

// compose runs docker-compose with the project's file.
func (s *stack) compose(t *testing.T, args ...string) string {
	t.Helper()
	return s.must(t, append([]string{"docker-compose"}, args...)...)
}

func (s *stack) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.run(t.Context(), args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// commandDeadline bounds one docker command; starting the whole system takes
// most of a minute on two cores.
const commandDeadline = 4 * time.Minute

func (s *stack) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandDeadline)
	defer cancel()
	if args[0] == "docker-compose" {
		args = append([]string{"docker-compose", "--project-name", project, "--file", "docker-compose.yml"}, args[1:]...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	cmd.Dir, cmd.Env = root, s.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// container is the id of a service's n-th container, from 1.
func (s *stack) container(t *testing.T, service string, n int) string {
	t.Helper()
	ids := strings.Fields(s.compose(t, "ps", "--quiet", service))
	if len(ids) < n {
		t.Fatalf("service %s has %d containers, want at least %d", service, len(ids), n)
	}
	return ids[n-1]
}

func (s *stack) url(port string) string { return "http://127.0.0.1:" + s.ports[port] }

func (s *stack) engines() map[string]string {
	return map[string]string{"sim-a": s.url("SIM_A_PORT"), "sim-b": s.url("SIM_B_PORT"), "sim-c": s.url("SIM_C_PORT")}
}

// metric sums the series of a /metrics page whose name and labels begin with prefix.
func metric(t *testing.T, url, prefix string) float64 {
	t.Helper()
	page, err := harness.Get(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for line := range strings.SplitSeq(page, "\n") {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("metric line %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// waitRouters waits until the port in front has n routers, and the indexer
// follows every engine.
func (s *stack) waitRouters(t *testing.T, n int) {
	t.Helper()
	harness.Eventually(t, strconv.Itoa(n)+" routers behind the port in front", func(ctx context.Context) error {
		page, err := harness.Get(ctx, s.url("STATUS_PORT")+"/metrics")
		if err != nil {
			return err
		}
		if up := strings.Count(page, `state="UP"} 1`+"\n"); !strings.Contains(page, fmt.Sprintf(`haproxy_backend_active_servers{proxy="routers"} %d`, n)) {
			return fmt.Errorf("%d lines say UP", up)
		}
		return nil
	})
	harness.Eventually(t, "every stream is live", func(ctx context.Context) error {
		for name := range s.engines() {
			if state, err := s.streamState(ctx, name); err != nil || state != "live" {
				return fmt.Errorf("%s is %s: %w", name, state, err)
			}
		}
		return nil
	})
}

func (s *stack) streamState(ctx context.Context, name string) (string, error) {
	var page struct {
		Replicas []struct{ Name, State string }
	}
	if err := harness.GetJSON(ctx, s.url("INDEXER_PORT")+"/replicas", &page); err != nil {
		return "", err
	}
	for _, r := range page.Replicas {
		if r.Name == name {
			return r.State, nil
		}
	}
	return "", fmt.Errorf("the indexer does not know %s", name)
}

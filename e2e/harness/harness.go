// Package harness starts the product's real programs as processes, on free
// ports of the loopback, and stops them again.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Deadline bounds every wait of the suite for something that takes
// milliseconds on an idle machine.
const Deadline = 30 * time.Second

// programs are built once for all tests of a process.
var programs = sync.OnceValues(func() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "prefixroute-e2e-")
	if err != nil {
		return "", err
	}
	for _, p := range []string{"services/fakevllm", "services/indexer", "services/router", "cmd/prefixroute"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, filepath.Base(p)), ".")
		cmd.Dir = filepath.Join(root, p)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w\n%s", p, err, out)
		}
	}
	return dir, nil
})

// Root is the folder of the workspace that the tests run in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no folder above the test has a go.work")
		}
		dir = parent
	}
}

// Cleanup removes the programs; TestMain calls it after the last test.
func Cleanup() error {
	dir, err := programs()
	if dir == "" {
		return err
	}
	return os.RemoveAll(dir)
}

// Program is the path of a built program: fakevllm, indexer, router or prefixroute.
func Program(t *testing.T, name string) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// The ports that FreeAddr hands out lie below those that the system gives to
// outgoing connections, which would otherwise take one while its owner is dead.
const (
	firstPort = 21000
	lastPort  = 31999
)

var nextPort atomic.Int64

// FreeAddr is a loopback address that nothing listens on and that no other call
// in this process returns. It is fixed beforehand so that a restarted program can
// take its old place.
func FreeAddr(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	for range lastPort - firstPort {
		// Two test processes at once start at different places.
		port := firstPort + (int64(os.Getpid())*97+nextPort.Add(1))%(lastPort-firstPort+1)
		lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:"+strconv.FormatInt(port, 10))
		if err != nil {
			continue
		}
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
		return lis.Addr().String()
	}
	t.Fatalf("no port between %d and %d is free", firstPort, lastPort)
	return ""
}

// Process is a program that can be killed and started again.
type Process struct {
	name string
	path string
	args []string
	cmd  *exec.Cmd
	log  *buffer
	done chan struct{}
}

// Start runs path with args and kills it when the test ends. What it printed is
// shown where the test failed.
func Start(t *testing.T, name, path string, args ...string) *Process {
	t.Helper()
	p := &Process{name: name, path: path, args: args, log: &buffer{}}
	p.Restart(t)
	t.Cleanup(func() {
		p.Kill(t)
		if t.Failed() {
			t.Logf("--- %s ---\n%s", name, p.log.tail())
		}
	})
	return p
}

// Restart starts the program again with the same arguments, after Kill.
func (p *Process) Restart(t *testing.T) {
	t.Helper()
	// Not bound to the test's context: Cleanup kills it, after the context has ended.
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), p.path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1")
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	p.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		defer close(done)
		// The exit status is of no interest: most processes here are killed.
		if err := cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			fmt.Fprintln(p.log, "wait:", err)
		}
	}(p.cmd, p.done)
}

// Kill sends SIGKILL and waits until the process is gone.
func (p *Process) Kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	<-p.done
}

// Stop sends SIGTERM and waits for a clean end.
func (p *Process) Stop(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(Deadline):
		t.Fatalf("%s did not stop within %v of SIGTERM", p.name, Deadline)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("%s exited with %d after SIGTERM, want 0", p.name, code)
	}
}

func (p *Process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("signal %s: %v", p.name, err)
	}
}

// Log is everything the process has printed so far.
func (p *Process) Log() string { return p.log.String() }

// Eventually polls check until it returns nil, and fails the test with its last
// error after [Deadline].
func Eventually(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Deadline)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, Deadline, err)
		case <-tick.C:
		}
	}
}

// buffer is a log that a process writes while a test reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) tail() string {
	const most = 6000
	s := b.String()
	return s[max(0, len(s)-most):]
}

// Package redistest runs a real redis-server for a test: its own process, on a
// free port, without persistence.
package redistest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Server is one redis-server. Its methods are for the test's goroutine.
type Server struct {
	t    testing.TB
	port int
	cmd  *exec.Cmd
}

// Start starts a server that is gone at the end of the test. Without the binary
// the test is skipped, unless PREFIXROUTE_TEST_REQUIRE is set, as CI does.
func Start(t testing.TB) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("PREFIXROUTE_TEST_REQUIRE") != "" {
			t.Fatal("redis-server is not installed, and this test is required")
		}
		t.Skip("SKIPPED: redis-server is not installed (apt-get install redis-server); the durable copy is not tested")
	}
	s := &Server{t: t, port: freePort(t)}
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}

// Addr is the server's "host:port".
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// URL is the server's URL.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// Restart starts the server, empty, on the same port as before.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.cmd = exec.CommandContext(context.WithoutCancel(s.t.Context()), "redis-server", "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", s.t.TempDir(), "--loglevel", "warning")
	// Nothing of the test outlives it, however it ends.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !s.answers(); {
		if time.Now().After(deadline) {
			s.t.Fatal("redis-server does not answer")
		}
		<-time.After(5 * time.Millisecond)
	}
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // an error says that it was killed
	s.cmd = nil
}

// Pause stops the process without closing anything; Resume lets it go on.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprint(conn, "PING\r\n"); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && line == "+PONG\r\n"
}

func freePort(t testing.TB) int {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	addr, ok := lis.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("listener has address %v, expected TCP", lis.Addr())
	}
	return addr.Port
}

//go:build cgo

package publish

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// zmqSockets are used by one goroutine at a time: that of New until Run starts.
type zmqSockets struct {
	ctx    *zmq.Context
	pub    *zmq.Socket
	router *zmq.Socket // nil without a replay endpoint
}

// open binds, or connects, the two sockets and returns their addresses.
func open(cfg Config) (_ sockets, endpoint, replay string, err error) {
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, "", "", fmt.Errorf("zmq: %w", err)
	}
	s := &zmqSockets{ctx: ctx}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(0))
		}
	}()
	if s.pub, err = ctx.NewSocket(zmq.PUB); err != nil {
		return nil, "", "", fmt.Errorf("zmq: %w", err)
	}
	if err = s.pub.SetSndhwm(HWM); err != nil {
		return nil, "", "", fmt.Errorf("zmq: %w", err)
	}
	if endpoint, err = attach(s.pub, cfg.Endpoint, binds(cfg.Endpoint)); err != nil {
		return nil, "", "", fmt.Errorf("events %w", err)
	}
	if cfg.Replay == "" {
		return s, endpoint, "", nil
	}
	if s.router, err = ctx.NewSocket(zmq.ROUTER); err != nil {
		return nil, "", "", fmt.Errorf("zmq: %w", err)
	}
	// Without it a ROUTER drops what a slow peer has no room for, and says
	// nothing: vLLM's replays lose messages that way.
	if err = s.router.SetRouterMandatory(1); err != nil {
		return nil, "", "", fmt.Errorf("zmq: %w", err)
	}
	if replay, err = attach(s.router, cfg.Replay, true); err != nil {
		return nil, "", "", fmt.Errorf("replay %w", err)
	}
	return s, endpoint, replay, nil
}

// binds tells whether vLLM's PUB socket would bind; vLLM only knows port 0 with
// a wildcard, but nobody can mean to connect to it.
func binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") || strings.HasSuffix(endpoint, ":0") ||
		strings.HasPrefix(endpoint, "ipc://") || strings.HasPrefix(endpoint, "inproc://")
}

// attach returns the address with its real port. The host stays as it was given:
// a wildcard is for the reader to replace, since only he knows his way here.
func attach(s *zmq.Socket, endpoint string, bind bool) (string, error) {
	if err := s.SetIpv6(strings.Contains(endpoint, "[")); err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	if !bind {
		if err := s.Connect(endpoint); err != nil {
			return "", fmt.Errorf("endpoint %q: connect: %w", endpoint, err)
		}
		return endpoint, nil
	}
	if err := s.Bind(endpoint); err != nil {
		return "", fmt.Errorf("endpoint %q: bind: %w", endpoint, err)
	}
	bound, err := s.GetLastEndpoint()
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	host, isTCP := strings.CutPrefix(endpoint, "tcp://")
	if !isTCP {
		return endpoint, nil
	}
	return "tcp://" + host[:strings.LastIndex(host, ":")] + bound[strings.LastIndex(bound, ":"):], nil
}

func (z *zmqSockets) send(frames [][]byte) error {
	_, err := z.pub.SendMessageDontwait(frames)
	return err
}

func (z *zmqSockets) request() ([][]byte, bool, error) {
	frames, err := z.router.RecvMessageBytes(zmq.DONTWAIT)
	if errors.Is(err, zmq.Errno(syscall.EAGAIN)) {
		return nil, false, nil
	}
	return frames, err == nil, err
}

func (z *zmqSockets) reply(frames [][]byte) error {
	_, err := z.router.SendMessageDontwait(frames)
	switch {
	case errors.Is(err, zmq.Errno(syscall.EAGAIN)):
		return errBusy
	case errors.Is(err, zmq.Errno(syscall.EHOSTUNREACH)):
		return errGone
	default:
		return err
	}
}

// close waits up to drain for messages that are on their way.
func (z *zmqSockets) close(drain time.Duration) error {
	var errs []error
	for _, s := range []*zmq.Socket{z.pub, z.router} {
		if s != nil {
			errs = append(errs, s.SetLinger(drain), s.Close())
		}
	}
	return errors.Join(append(errs, z.ctx.Term())...)
}

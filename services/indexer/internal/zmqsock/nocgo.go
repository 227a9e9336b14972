//go:build !cgo

package zmqsock

import (
	"context"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
)

// Client stands for the real one where libzmq is missing; [New] never makes one.
type Client struct{}

// New returns [ErrNoLibzmq].
func New(Config) (*Client, error) { return nil, ErrNoLibzmq }

// Run returns [ErrNoLibzmq].
func (*Client) Run(context.Context) error { return ErrNoLibzmq }

// Subscribe returns [ErrNoLibzmq].
func (*Client) Subscribe(context.Context, string, *inbox.Queue) (func(), error) {
	return nil, ErrNoLibzmq
}

// Ask returns [ErrNoLibzmq].
func (*Client) Ask(context.Context, string, uint64, func(kvevents.Message) bool, func(error)) error {
	return ErrNoLibzmq
}

//go:build !cgo

package app

import (
	"log/slog"
	"strings"
	"testing"
)

func TestNewWithoutLibzmq(t *testing.T) {
	t.Parallel()

	cfg := DefaultConfig()
	if err := cfg.Replicas.Set("a=http://h:1"); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err == nil || !strings.HasPrefix(err.Error(), "built without libzmq: install it (apt-get install libzmq3-dev pkg-config)") {
		t.Errorf("New() = %v, want the sentence that says what to install", err)
	}
}

package ops

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestProbe(t *testing.T) {
	t.Parallel()

	var state error
	srv := httptest.NewServer(NewMux(NewRegistry("test"), func() error { return state }))
	defer srv.Close()
	_, port, _ := strings.Cut(srv.Listener.Addr().String(), ":")
	for _, addr := range []string{"127.0.0.1:" + port, "0.0.0.0:" + port, ":" + port} {
		if err := Probe(t.Context(), addr, "/readyz"); err != nil {
			t.Errorf("Probe(%s) of a ready service = %v", addr, err)
		}
	}
	state = errors.New("warming up")
	if err := Probe(t.Context(), "127.0.0.1:"+port, "/readyz"); err == nil || !strings.Contains(err.Error(), "503: warming up") {
		t.Errorf("Probe of a service that is not ready = %v, want its reason", err)
	}
	srv.Close()
	if err := Probe(t.Context(), "127.0.0.1:"+port, "/readyz"); err == nil {
		t.Error("Probe of nobody = nil, want an error")
	}
	if err := Probe(t.Context(), "nowhere", "/readyz"); err == nil {
		t.Error("Probe of an address without a port = nil, want an error")
	}
}

func TestCutProbe(t *testing.T) {
	t.Parallel()

	if flags, probe := CutProbe([]string{"probe", "-listen", "x:1"}); !probe || len(flags) != 2 {
		t.Errorf("CutProbe of a probe = %v, %v", flags, probe)
	}
	if flags, probe := CutProbe([]string{"-listen", "probe"}); probe || len(flags) != 2 {
		t.Errorf("CutProbe of a start = %v, %v", flags, probe)
	}
}

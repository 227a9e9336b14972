package sources

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/replicas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine answers GETs with the given bodies, and 404 for the rest.
func engine(t *testing.T, bodies map[string]string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := bodies[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

const models = `{"object":"list","data":[{"id":"la","parent":"base/m"},{"id":"base/m","parent":null}]}`

func one(endpoint, replay, topic string) string {
	return `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"` + endpoint + `","replay_endpoint":` + replay + `,"buffer_steps":10000,"topic":"` + topic + `"}}`
}

func TestResolve(t *testing.T) {
	t.Parallel()

	two := `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:1","replay_endpoint":"tcp://*:2","topic":"kv@a:1@m"},
		"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:3","replay_endpoint":"tcp://*:4","topic":"kv@a:1@m"}}`
	tests := []struct {
		name    string
		bodies  map[string]string
		cfg     replicas.Replica
		want    Source
		wantErr string
	}{
		{
			name:   "all from the engine",
			bodies: map[string]string{"/kv_event_sources": one("tcp://*:5557", `"tcp://*:5558"`, "kv@10.0.0.1:8000@org/m")},
			want:   Source{Events: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5558", Topic: "kv@10.0.0.1:8000@org/m", Model: "org/m"},
		},
		{
			name:   "no replay socket, topic without a model, unspecified addresses",
			bodies: map[string]string{"/kv_event_sources": one("tcp://[::]:5557", "null", ""), "/v1/models": models},
			want:   Source{Events: "tcp://127.0.0.1:5557", Model: "base/m"},
		},
		{
			name:   "a bound address stays",
			bodies: map[string]string{"/kv_event_sources": one("tcp://10.9.8.7:5557", `"ipc:///tmp/x"`, "kv@p@m")},
			want:   Source{Events: "tcp://10.9.8.7:5557", Replay: "ipc:///tmp/x", Topic: "kv@p@m", Model: "m"},
		},
		{
			name:   "rank 1 of two",
			bodies: map[string]string{"/kv_event_sources": two},
			cfg:    replicas.Replica{Rank: 1},
			want:   Source{Events: "tcp://127.0.0.1:3", Replay: "tcp://127.0.0.1:4", Topic: "kv@a:1@m", Model: "m"},
		},
		{
			name:    "a rank that is not there",
			bodies:  map[string]string{"/kv_event_sources": two},
			cfg:     replicas.Replica{Rank: 2},
			wantErr: "rank is 2, the engine reports ranks 0, 1",
		},
		{
			name:   "configured, nothing to ask",
			cfg:    replicas.Replica{Events: "tcp://h:1", Replay: "tcp://h:2", Model: "m"},
			want:   Source{Events: "tcp://h:1", Replay: "tcp://h:2", Model: "m"},
			bodies: map[string]string{"/kv_event_sources": "not asked"},
		},
		{
			name: "configured, and an engine that cannot tell the rest",
			cfg:  replicas.Replica{Events: "tcp://h:1"},
			want: Source{Events: "tcp://h:1"},
		},
		{
			name:   "configured events, the rest from the engine",
			bodies: map[string]string{"/kv_event_sources": one("tcp://*:5557", `"tcp://*:5558"`, "kv@p@m")},
			cfg:    replicas.Replica{Events: "tcp://h:1"},
			want:   Source{Events: "tcp://h:1", Replay: "tcp://127.0.0.1:5558", Topic: "kv@p@m", Model: "m"},
		},
		{name: "older engine", wantErr: "status is 404"},
		{name: "events are off", bodies: map[string]string{"/kv_event_sources": "{}"}, wantErr: "publishes no events"},
		{name: "not JSON", bodies: map[string]string{"/kv_event_sources": "<html>"}, wantErr: "read JSON"},
		{
			name:    "another publisher",
			bodies:  map[string]string{"/kv_event_sources": `{"0":{"enable_kv_cache_events":true,"publisher":"null"}}`},
			wantErr: `publisher "null"`,
		},
		{
			name:    "endless answer",
			bodies:  map[string]string{"/kv_event_sources": strings.Repeat(" ", maxBody+1)},
			wantErr: "larger than",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := tt.cfg
			cfg.Name, cfg.URL = "a", engine(t, tt.bodies)
			got, err := NewResolver(5*time.Second).Resolve(t.Context(), cfg)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error = %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Resolve (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPasswordsStayOutOfErrors(t *testing.T) {
	t.Parallel()

	base := strings.Replace(engine(t, map[string]string{"/v1/models": "x"}), "http://", "http://user:hunter2@", 1)
	for _, u := range []string{base, "http://user:hunter2@127.0.0.1:1"} {
		_, err := NewResolver(5*time.Second).Resolve(t.Context(), replicas.Replica{Name: "a", URL: u})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error is %v, want one without the password", err)
		}
	}
}

func TestResolveTakesAtMostItsTimeout(t *testing.T) {
	t.Parallel()

	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer srv.Close()
	defer close(hang)
	began := time.Now()
	_, err := NewResolver(50*time.Millisecond).Resolve(t.Context(), replicas.Replica{Name: "a", URL: srv.URL})
	if err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("an engine that hangs gave error %v after %v", err, time.Since(began))
	}
}

//go:build compose

// Package compose holds docker-compose.yml to what it promises, on real
// containers. scripts/compose-e2e builds the images and runs it.
package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/prefixroute/prefixroute/e2e/harness"
	"github.com/prefixroute/prefixroute/pkg/trace"
)

// TestCompose takes one system through everything, since starting it is most of
// the time. The steps build on each other in this order.
func TestCompose(t *testing.T) {
	s := up(t)
	s.waitRouters(t, 2)
	step := func(name string, f func(t *testing.T, s *stack)) {
		if !t.Run(name, func(t *testing.T) { f(t, s) }) {
			t.FailNow()
		}
	}
	step("second request hits", testSecondRequestHits)
	step("compare", testCompare)
	step("scale under load", testScale)
	step("kill under load", testKill)
	step("Redis wiped", testRedisWiped)
	step("events cut", testEventsCut)
}

func testSecondRequestHits(t *testing.T, s *stack) {
	body, err := trace.Body{Model: "demo", MaxTokens: 1, Messages: []trace.Message{
		{Role: "system", Content: strings.Repeat("check the invoice and the refund policy before answering. ", 6)},
		{Role: "user", Content: "where is my refund?"},
	}}.JSON()
	if err != nil {
		t.Fatal(err)
	}
	first := ask(t.Context(), s.url("PORT"), body)
	if first.err != nil || first.cached != 0 || !strings.HasPrefix(first.match, "0/") {
		t.Fatalf("first request: %+v, want no match and no cached token", first)
	}
	second := ask(t.Context(), s.url("PORT"), body)
	matched, total, _ := strings.Cut(second.match, "/")
	if second.err != nil || second.endpoint != first.endpoint || matched != total || second.index != "precise" || second.cached < 16 {
		t.Errorf("second request: %+v after %+v, want a whole precise match on the same replica", second, first)
	}
}

// testCompare runs the command line's comparison against the published ports.
func testCompare(t *testing.T, s *stack) {
	args := []string{
		harness.Program(t, "prefixroute"), "compare", "--json",
		"--router", "approximate=" + s.url("APPROXIMATE_PORT"), "--router", "precise=" + s.url("PORT"),
	}
	for name, url := range s.engines() {
		args = append(args, "--server", name+"="+url)
	}
	out := s.must(t, args...)
	var results []struct {
		Index         string
		Wrong, Errors int
		HitRate       float64 `json:"hit_rate"`
	}
	_, list, _ := strings.Cut(out, "[\n") // progress comes before it
	if err := json.Unmarshal([]byte("["+list), &results); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	t.Logf("%+v", results)
	if len(results) != 2 || results[0].Wrong == 0 || results[1].Wrong != 0 || results[0].Errors+results[1].Errors != 0 {
		t.Errorf("results %+v, want wrong predictions from approximate alone, and no errors", results)
	}
}

// testScale goes from one router to four while a load runs.
func testScale(t *testing.T, s *stack) {
	s.compose(t, "up", "--detach", "--no-build", "--scale", "router=1")
	s.waitRouters(t, 1)
	requireAnswered(t, send(t.Context(), s.url("PORT"), window(t, 2, 0))) // every tenant finds its place
	one := send(t.Context(), s.url("PORT"), window(t, 10, 1))
	requireAnswered(t, one)

	stop := background(t, s.url("PORT"), 2)
	s.compose(t, "up", "--detach", "--no-build", "--scale", "router=4")
	s.waitRouters(t, 4)
	during := stop()
	requireAnswered(t, during)
	t.Logf("index of the answers while scaling: %v", indexes(during))
	four := send(t.Context(), s.url("PORT"), window(t, 10, 3))
	requireAnswered(t, four)

	hits1, share1 := shares(one)
	hits4, share4 := shares(four)
	t.Logf("one router: hit rate %.3f, shares %v; four: %.3f, %v; %d requests while scaling", hits1, share1, hits4, share4, len(during))
	const point = 0.01
	if math.Abs(hits1-hits4) > point {
		t.Errorf("hit rate %.3f with one router, %.3f with four; want them within a point", hits1, hits4)
	}
	for name := range s.engines() {
		if math.Abs(share1[name]-share4[name]) > point {
			t.Errorf("%s gets %.3f of the requests with one router, %.3f with four; want them within a point", name, share1[name], share4[name])
		}
	}
}

// testKill kills one container after the other under load. The port in front
// comes last and without a load: it is the only way in.
func testKill(t *testing.T, s *stack) {
	for i, c := range []struct {
		service string
		n       int
	}{
		{"router", 1}, {"router", 3}, {"sim-a", 1}, {"sim-b", 1}, {"sim-c", 1}, {"indexer", 1}, {"redis", 1}, {"router-approximate", 1},
	} {
		service, id := c.service, s.container(t, c.service, c.n)
		stop := background(t, s.url("PORT"), 100+i)
		s.must(t, "docker", "kill", id)
		s.tellsTruth(t, service)
		s.must(t, "docker", "start", id)
		s.waitRouters(t, 4)
		replies := stop()
		requireAnswered(t, replies)
		t.Logf("%s killed and started again: %d requests, none lost", service, len(replies))
		if service == "indexer" {
			requireSome(t, replies, "approximate")
		}
	}
	s.requireEqualSets(t)

	front := s.container(t, "front", 1)
	s.must(t, "docker", "kill", front)
	s.must(t, "docker", "start", front)
	s.waitRouters(t, 4)
	requireAnswered(t, send(t.Context(), s.url("PORT"), window(t, 1, 199)))
}

// tellsTruth waits until the metrics say what was killed.
func (s *stack) tellsTruth(t *testing.T, killed string) {
	t.Helper()
	indexer := s.url("INDEXER_PORT")
	switch killed {
	case "router":
		harness.EventuallyOnPage(t, s.url("STATUS_PORT"), `haproxy_backend_active_servers{proxy="routers"} 3`)
	case "sim-a", "sim-b", "sim-c":
		harness.EventuallyOnPage(t, indexer, `prefixroute_indexer_replica_state{replica="`+killed+`",state="live"} 0`)
	case "redis":
		harness.EventuallyOnPage(t, indexer, "prefixroute_indexer_store_up 0")
	case "indexer":
		harness.Eventually(t, "answers say approximate", func(ctx context.Context) error {
			r := ask(ctx, s.url("PORT"), window(t, 1, 99)[0])
			if r.err == nil && r.index != "approximate" {
				return fmt.Errorf("index is %s", r.index)
			}
			return r.err
		})
	}
}

func requireSome(t *testing.T, replies []reply, index string) {
	t.Helper()
	for _, r := range replies {
		if r.index == index {
			return
		}
	}
	t.Errorf("none of %d answers said %s", len(replies), index)
}

// testRedisWiped empties Redis under load: answers stay precise, and the copy
// becomes whole again by itself.
func testRedisWiped(t *testing.T, s *stack) {
	indexer := s.url("INDEXER_PORT") + "/metrics"
	before := metric(t, indexer, "prefixroute_indexer_store_whole_writes_total")
	stop := background(t, s.url("PORT"), 200)
	s.must(t, "docker", "exec", s.container(t, "redis", 1), "redis-cli", "flushall")
	harness.Eventually(t, "every set is written whole again", func(context.Context) error {
		if now := metric(t, indexer, "prefixroute_indexer_store_whole_writes_total"); now < before+3 {
			return fmt.Errorf("%v whole writes after %v", now, before)
		}
		return nil
	})
	replies := stop()
	requireAnswered(t, replies)
	for _, r := range replies {
		if r.index != "precise" {
			t.Fatalf("an answer says %s while Redis was wiped, want precise", r.index)
		}
	}

	id := s.container(t, "indexer", 1)
	s.must(t, "docker", "kill", id)
	s.must(t, "docker", "start", id)
	s.waitRouters(t, 4)
	if got := metric(t, indexer, `prefixroute_indexer_warm_starts_total{result="restored"}`); got != 3 {
		t.Errorf("%v sets were taken over from Redis, want 3", got)
	}
	s.requireEqualSets(t)
}

// testEventsCut drops every packet between the indexer and one engine, without a
// word to either end, and then lets them pass again.
func testEventsCut(t *testing.T, s *stack) {
	if os.Geteuid() != 0 {
		t.Skip("entering a container's network takes root")
	}
	indexer := s.must(t, "docker", "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", s.container(t, "indexer", 1))
	pid := s.must(t, "docker", "inspect", "--format", "{{.State.Pid}}", s.container(t, "sim-c", 1))
	rule := func(action string) {
		for _, side := range [][]string{{"INPUT", "--source"}, {"OUTPUT", "--destination"}} {
			s.must(t, "nsenter", "--target", pid, "--net", "iptables", action, side[0], side[1], indexer, "--jump", "DROP")
		}
	}
	stop := background(t, s.url("PORT"), 300)
	rule("--append")
	harness.Eventually(t, "the indexer notices", func(ctx context.Context) error {
		state, err := s.streamState(ctx, "sim-c")
		if err == nil && state == "live" {
			err = fmt.Errorf("sim-c is %s", state)
		}
		return err
	})
	harness.Eventually(t, "answers say mixed", func(ctx context.Context) error {
		r := ask(ctx, s.url("PORT"), window(t, 1, 301)[0])
		if r.err == nil && r.index != "mixed" {
			return fmt.Errorf("index is %s", r.index)
		}
		return r.err
	})
	rule("--delete")
	s.waitRouters(t, 4)
	requireAnswered(t, stop())
	s.requireEqualSets(t)
}

// requireEqualSets compares what each engine holds with what the indexer
// believes, at one and the same sequence number.
func (s *stack) requireEqualSets(t *testing.T) {
	t.Helper()
	for name, url := range s.engines() {
		harness.RequireEqualSets(t, name, url, s.url("INDEXER_PORT"))
	}
}

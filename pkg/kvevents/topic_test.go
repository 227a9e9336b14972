package kvevents

import (
	"net"
	"strconv"
	"testing"
)

// TestBB047Topics splits the topics that broke others. Hosts and ports are
// taken from the pod as a consumer takes them.
func TestBB047Topics(t *testing.T) {
	t.Parallel()

	var cases struct {
		Topics []struct {
			Topic, IP, Model, Error string
			Port                    *int
		}
	}
	fromJSON(t, mustRead(t, "testdata/bugs/topics.json"), &cases)
	for _, c := range cases.Topics {
		got, ok := ParseTopic(c.Topic)
		if ok != (c.Error == "") {
			t.Errorf("ParseTopic(%q) = %+v, %v, want %q", c.Topic, got, ok, c.Error)
		}
		if !ok {
			continue
		}
		host := got.Pod
		if c.Port != nil {
			var port string
			var err error
			if host, port, err = net.SplitHostPort(got.Pod); err != nil || port != strconv.Itoa(*c.Port) {
				t.Errorf("ParseTopic(%q): pod %q, %v, want port %d", c.Topic, got.Pod, err, *c.Port)
			}
		}
		if host != c.IP || got.Model != c.Model {
			t.Errorf("ParseTopic(%q) = %q, %q, want %q, %q", c.Topic, host, got.Model, c.IP, c.Model)
		}
		if got.String() != c.Topic {
			t.Errorf("String() = %q, want %q", got.String(), c.Topic)
		}
	}
}

func TestParseTopicPods(t *testing.T) {
	t.Parallel()

	f := func(pod string, want bool) {
		t.Helper()
		if got, ok := ParseTopic("kv@" + pod + "@m"); ok != want {
			t.Errorf("pod %q: %+v, %v, want %v", pod, got, ok, want)
		}
	}
	f("vllm-0", true)
	f("vllm-0.vllm.svc:8000", true)
	f("[fd00::12]", true)
	f("[fd00::12%eth0]:1", true)
	f("", false)
	f(":8000", false)
	f("10.0.0.1:", false)
	f("10.0.0.1:0", false)
	f("10.0.0.1:http", false)
	f("10.0.0.1:+80", false)
	f("10.0.0.1:80:90", false)
	f("[10.0.0.1]:80", false)
	f("[fd00::12", false)
	f("[fd00::12]80", false)
	f("[]:80", false)
	f("a\xff", false)

	for _, s := range []string{"KV@a@m", "kv@a", "kv", "xkv@a@m", "kv@@m"} {
		if got, ok := ParseTopic(s); ok {
			t.Errorf("ParseTopic(%q) = %+v, want none", s, got)
		}
	}
}

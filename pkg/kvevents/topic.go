package kvevents

import (
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

const topicPrefix = "kv"

// A Topic is what the convention "kv@pod@model" says about a publisher.
//
// ZeroMQ subscribes by byte prefix, so a subscription to one topic also brings
// those that merely begin like it: compare the whole topic after receipt.
type Topic struct {
	// Pod is "host:port", or a bare host or name. IPv6 hosts are in brackets.
	Pod string
	// Model is the served model's name and may hold any character, '@' too.
	Model string
}

// ParseTopic splits s at its first two '@'. It reports false for topics of
// another convention (vLLM's default is the empty one) and for pods that can't
// be told apart from something else: an IPv6 address without brackets, or a
// port that isn't one.
func ParseTopic(s string) (Topic, bool) {
	prefix, rest, _ := strings.Cut(s, "@")
	pod, model, found := strings.Cut(rest, "@")
	if prefix != topicPrefix || !found || model == "" || !utf8.ValidString(s) || !validPod(pod) {
		return Topic{}, false
	}
	return Topic{Pod: pod, Model: model}, true
}

// String returns the topic as it is published.
func (t Topic) String() string {
	return topicPrefix + "@" + t.Pod + "@" + t.Model
}

// validPod accepts a name or an address, with or without a port.
func validPod(pod string) bool {
	host, port, hasPort := strings.Cut(pod, ":")
	if inner, ok := strings.CutPrefix(pod, "["); ok {
		address, after, closed := strings.Cut(inner, "]")
		if a, err := netip.ParseAddr(address); !closed || err != nil || !a.Is6() {
			return false
		}
		if host, port, hasPort = strings.Cut(after, ":"); host != "" {
			return false // something between the bracket and the port
		}
		host = address
	}
	if host == "" || !hasPort {
		return host != ""
	}
	n, err := strconv.ParseUint(port, 10, 16) // also refuses a second ':'
	return err == nil && n > 0
}

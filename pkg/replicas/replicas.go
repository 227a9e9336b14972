// Package replicas reads the list of replicas that the router and the indexer
// share: which engines there are, by which name, and where each one answers.
//
// A replica is one publisher of KV-cache events: an engine's address and one
// data-parallel rank of it. Its name is its identity everywhere in the product,
// in headers, metrics and the durable copy, so it must be the same in every
// service's list.
package replicas

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Replica is one line of the list.
type Replica struct {
	// Name is the identity; letters, digits, '.', '-', '_' and ':'.
	Name string `yaml:"name"`
	// URL is the base of the engine's HTTP API, without a path.
	URL string `yaml:"url"`

	// Events and Replay are the ZMQ endpoints to connect to, for example
	// tcp://10.0.0.1:5557. Empty: asked from the engine's /kv_event_sources.
	Events string `yaml:"events"`
	Replay string `yaml:"replay"`

	// Topic is the topic to accept; empty accepts the engine's only one.
	Topic string `yaml:"topic"`
	// Model is the base model's name; empty takes it from the topic.
	Model string `yaml:"model"`
	// Rank is the data-parallel rank behind URL, from 0.
	Rank int `yaml:"rank"`
	// BlockSize is the engine's tokens per block; 0 takes it from the events.
	BlockSize int `yaml:"block_size"`
}

// Parse reads NAME=URL[,events=ADDR][,replay=ADDR][,topic=T][,model=M][,rank=N][,block-size=N].
func Parse(s string) (Replica, error) {
	head, rest, _ := strings.Cut(s, ",")
	name, base, ok := strings.Cut(head, "=")
	if !ok {
		return Replica{}, fmt.Errorf("replica is %q, expected NAME=URL, for example sim-a=http://127.0.0.1:8000", s)
	}
	r := Replica{Name: name, URL: strings.TrimRight(base, "/")}
	var errs []error
	for part := range strings.SplitSeq(rest, ",") {
		if part == "" {
			continue
		}
		if err := r.set(part); err != nil {
			errs = append(errs, fmt.Errorf("replica %s: %w", name, err))
		}
	}
	return r, errors.Join(append(errs, r.validate())...)
}

func (r *Replica) set(part string) (err error) {
	key, value, _ := strings.Cut(part, "=")
	switch key {
	case "events":
		r.Events = value
	case "replay":
		r.Replay = value
	case "topic":
		r.Topic = value
	case "model":
		r.Model = value
	case "rank":
		r.Rank, err = strconv.Atoi(value)
	case "block-size":
		r.BlockSize, err = strconv.Atoi(value)
	default:
		return fmt.Errorf("option is %q, expected one of events, replay, topic, model, rank, block-size", key)
	}
	if err != nil {
		return fmt.Errorf("%s is %q, expected a whole number", key, value)
	}
	return nil
}

func (r Replica) validate() error {
	var errs []error
	if r.Name == "" || strings.ContainsFunc(r.Name, notNameRune) {
		errs = append(errs, fmt.Errorf("replica name is %q, expected letters, digits, '.', '-', '_' and ':'", r.Name))
	}
	u, err := url.Parse(r.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, fmt.Errorf("replica %s: url is %q, expected http://HOST:PORT", r.Name, r.URL))
	}
	for _, e := range []struct{ name, value string }{{"events", r.Events}, {"replay", r.Replay}} {
		if e.value != "" && !strings.Contains(e.value, "://") {
			errs = append(errs, fmt.Errorf("replica %s: %s is %q, expected a ZMQ endpoint such as tcp://10.0.0.1:5557", r.Name, e.name, e.value))
		}
	}
	if r.Rank < 0 {
		errs = append(errs, fmt.Errorf("replica %s: rank is %d, expected 0 or more", r.Name, r.Rank))
	}
	if r.BlockSize < 0 {
		errs = append(errs, fmt.Errorf("replica %s: block size is %d, expected 0 or more tokens", r.Name, r.BlockSize))
	}
	return errors.Join(errs...)
}

func notNameRune(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(".-_:", r)
}

// List is a set of replicas with distinct names. It is a [flag.Value] that can
// be given several times; one value may hold several replicas, separated by
// white space, which is how an environment variable holds them all.
type List []Replica

// String implements [flag.Value].
func (l *List) String() string {
	if l == nil {
		return ""
	}
	names := make([]string, len(*l))
	for i, r := range *l {
		names[i] = r.Name + "=" + r.URL
	}
	return strings.Join(names, " ")
}

// Set implements [flag.Value].
func (l *List) Set(s string) error {
	for field := range strings.FieldsSeq(s) {
		r, err := Parse(field)
		if err != nil {
			return err
		}
		*l = append(*l, r)
	}
	return nil
}

// Validate reports every fault of the list as a whole.
func (l List) Validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, r := range l {
		if err := r.validate(); err != nil {
			errs = append(errs, err)
		}
		if seen[r.Name] {
			errs = append(errs, fmt.Errorf("replica name %q is given twice, expected distinct names", r.Name))
		}
		seen[r.Name] = true
	}
	return errors.Join(errs...)
}

// Names lists the replicas' names in order.
func (l List) Names() []string {
	names := make([]string, 0, len(l))
	for _, r := range l {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return names
}

// ReadFile reads a YAML or JSON file whose key "replicas" holds the list. An
// unknown key is an error.
func ReadFile(path string) (List, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read replicas: %w", err)
	}
	defer f.Close()
	var doc struct {
		Replicas List `yaml:"replicas"`
	}
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("read replicas from %s: %w", path, err)
	}
	if err := doc.Replicas.Validate(); err != nil {
		return nil, fmt.Errorf("replicas in %s: %w", path, err)
	}
	return doc.Replicas, nil
}

package trace

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGenerateIsDecidedByItsSeed(t *testing.T) {
	t.Parallel()

	c := Default("m")
	c.Rate = 20
	a, b := generate(t, c), generate(t, c)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("equal configurations differ:\n%s", diff)
	}
	c.Seed++
	if cmp.Equal(a, generate(t, c)) {
		t.Error("another seed gave the same trace")
	}
}

func TestGenerateSharesWhatItShould(t *testing.T) {
	t.Parallel()

	c := Default("m")
	c.Requests = 400
	systems := map[int]string{}
	seen := map[string]int{}
	questions := map[string]bool{}
	for i, r := range generate(t, c) {
		system, question := r.Body.Messages[0].Content, r.Body.Messages[1].Content
		if prev, ok := systems[r.Tenant]; ok && prev != system {
			t.Fatalf("request %d: tenant %d has another system prompt than before", i, r.Tenant)
		}
		systems[r.Tenant] = system
		seen[system] = r.Tenant
		if got := len(strings.Fields(system)); got != c.Words {
			t.Fatalf("system prompt of %d words, want %d", got, c.Words)
		}
		if questions[question] {
			t.Fatalf("request %d: question %q was asked before", i, question)
		}
		questions[question] = true
		if r.At != 0 {
			t.Fatalf("request %d arrives at %v, want 0 where the rate is 0", i, r.At)
		}
	}
	if len(systems) != c.Tenants || len(seen) != c.Tenants {
		t.Errorf("%d tenants with %d system prompts, want %d of each", len(systems), len(seen), c.Tenants)
	}
}

func TestGenerateRateAndHotShare(t *testing.T) {
	t.Parallel()

	c := Default("m")
	c.Requests, c.Rate, c.Hot = 4000, 20, 0.7
	reqs := generate(t, c)
	hot := 0
	for i, r := range reqs {
		if r.Tenant == 0 {
			hot++
		}
		if i > 0 && r.At < reqs[i-1].At {
			t.Fatalf("request %d arrives before the one before it", i)
		}
	}
	// 0.7 plus an eighth of the rest.
	if share := float64(hot) / float64(len(reqs)); share < 0.70 || share > 0.78 {
		t.Errorf("hot share %.3f, want about 0.74", share)
	}
	if rate := float64(len(reqs)) / reqs[len(reqs)-1].At.Seconds(); rate < 18 || rate > 22 {
		t.Errorf("rate %.1f a second, want about 20", rate)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	t.Parallel()

	_, err := Generate(Config{Rate: -1, Hot: 2})
	for _, want := range []string{"tenants is 0", "words is 0", "requests is 0", "max tokens is 0", "rate is -1", "hot share is 2", "model is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q: %v", want, err)
		}
	}
}

func generate(t *testing.T, c Config) []Request {
	t.Helper()
	reqs, err := Generate(c)
	if err != nil {
		t.Fatal(err)
	}
	return reqs
}

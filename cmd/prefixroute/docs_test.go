package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/stack"
	fakevllm "github.com/prefixroute/prefixroute/services/fakevllm/app"
	indexer "github.com/prefixroute/prefixroute/services/indexer/app"
	router "github.com/prefixroute/prefixroute/services/router/app"
)

var update = flag.Bool("update", false, "rewrite the generated tables of docs/ from what the programs say now")

// TestConfigurationDocs holds docs/configuration.md to the flags of the services.
func TestConfigurationDocs(t *testing.T) {
	t.Parallel()

	noEnv := func(string) string { return "" }
	for _, s := range []struct {
		name  string
		parse func(stderr io.Writer) error
	}{
		{"indexer", func(w io.Writer) error { _, err := indexer.ParseConfig([]string{"-h"}, noEnv, w); return err }},
		{"router", func(w io.Writer) error { _, err := router.ParseConfig([]string{"-h"}, noEnv, w); return err }},
		{"fakevllm", func(w io.Writer) error { _, err := fakevllm.ParseConfig([]string{"-h"}, noEnv, w); return err }},
	} {
		var usage bytes.Buffer
		if err := s.parse(&usage); !errors.Is(err, flag.ErrHelp) {
			t.Fatalf("%s -h: error %v, want flag.ErrHelp", s.name, err)
		}
		checkSection(t, "configuration.md", "flags of "+s.name, flagTable(usage.String()))
	}
}

var (
	flagLine    = regexp.MustCompile(`^  -(\S+)`)
	defaultText = regexp.MustCompile(` \(default "?(.*?)"?\)$`)
)

// flagTable makes a table of what the flag package prints: a line with the name,
// then a line with the meaning and the default.
func flagTable(usage string) string {
	var b strings.Builder
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	lines := strings.Split(usage, "\n")
	for i, line := range lines {
		name := flagLine.FindStringSubmatch(line)
		if name == nil || i+1 >= len(lines) {
			continue
		}
		meaning, value := strings.TrimSpace(lines[i+1]), ""
		if m := defaultText.FindStringSubmatch(meaning); m != nil {
			meaning, value = strings.TrimSuffix(meaning, m[0]), "`"+m[1]+"`"
		}
		fmt.Fprintf(&b, "| `-%s` | %s | %s |\n", name[1], value, strings.ReplaceAll(meaning, "|", `\|`))
	}
	return b.String()
}

// TestMetricsDocs holds docs/operations.md to the metrics of running services.
func TestMetricsDocs(t *testing.T) {
	_, cfg := quick()
	cfg.Routers, cfg.Redis = indexes, startRedis(t)
	s, err := stack.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	get(t, s.Routers[1]+"/v1/models") // some series begin with the first request
	checkSection(t, "operations.md", "metrics of indexer", metricTable(t, s.IndexerOps))
	checkSection(t, "operations.md", "metrics of router", metricTable(t, s.RouterOps[1]))
}

// startRedis starts a server of the test's own on a socket file.
func startRedis(t *testing.T) (url string) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatalf("start redis-server (scripts/deps installs it): %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Kill(), ignoreExit(cmd.Wait())); err != nil {
			t.Error(err)
		}
	})
	return "unix://" + socket
}

func ignoreExit(err error) error {
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return nil
	}
	return err
}

var (
	helpLine  = regexp.MustCompile(`(?m)^# HELP (prefixroute_\S+) (.*)$`)
	labelName = regexp.MustCompile(`([a-z_]+)="`)
)

// metricTable makes a table of the product's own families on a /metrics page.
func metricTable(t *testing.T, ops string) string {
	t.Helper()
	page := get(t, ops+"/metrics")
	var rows []string
	for _, m := range helpLine.FindAllStringSubmatch(page, -1) {
		name, help := m[1], m[2]
		kind := regexp.MustCompile(`(?m)^# TYPE ` + name + ` (\S+)$`).FindStringSubmatch(page)
		var labels []string
		for _, series := range regexp.MustCompile(`(?m)^`+name+`(?:_bucket)?\{(.*)\} `).FindAllStringSubmatch(page, -1) {
			for _, l := range labelName.FindAllStringSubmatch(series[1], -1) {
				if l[1] != "le" && !slices.Contains(labels, l[1]) {
					labels = append(labels, l[1])
				}
			}
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind[1], strings.Join(labels, ", "), help))
	}
	slices.Sort(rows)
	return "| metric | type | labels | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "")
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// checkSection compares want with what a page has between the marks of the
// section's name, or puts it there.
func checkSection(t *testing.T, page, section, want string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", page)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- generated: "+section+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(string(text), begin)
	got, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("docs/%s has no section %q", page, section)
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("docs/%s, %s: run go test ./cmd/prefixroute -run Docs -update (-page +program):\n%s", page, section, diff)
	}
}

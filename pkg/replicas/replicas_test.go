package replicas

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()

	tests := []struct {
		in      string
		want    Replica
		wantErr string // part of the message; empty = none
	}{
		{in: "a=http://10.0.0.1:8000", want: Replica{Name: "a", URL: "http://10.0.0.1:8000"}},
		{
			in: "10.0.0.1:8000=http://10.0.0.1:8000/,events=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558,topic=kv@10.0.0.1:8000@m,model=org/m,rank=3,block-size=32",
			want: Replica{
				Name: "10.0.0.1:8000", URL: "http://10.0.0.1:8000", Events: "tcp://10.0.0.1:5557", Replay: "tcp://10.0.0.1:5558",
				Topic: "kv@10.0.0.1:8000@m", Model: "org/m", Rank: 3, BlockSize: 32,
			},
		},
		{in: "http://10.0.0.1:8000", wantErr: "expected NAME=URL"},
		{in: "a=10.0.0.1:8000", wantErr: `url is "10.0.0.1:8000"`},
		{in: "a b=http://h:1", wantErr: `replica name is "a b"`},
		{in: "a=http://h:1,events=h:5557", wantErr: `events is "h:5557"`},
		{in: "a=http://h:1,rank=x", wantErr: `rank is "x"`},
		{in: "a=http://h:1,rank=-1", wantErr: "rank is -1"},
		{in: "a=http://h:1,zone=b", wantErr: `option is "zone"`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			got, err := Parse(tt.in)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("Parse(%q) error = %v, want one with %q", tt.in, err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Parse(%q) (-want +got):\n%s", tt.in, diff)
			}
		})
	}
}

func TestListSetTakesSeveral(t *testing.T) {
	t.Parallel()

	var l List
	if err := l.Set("a=http://h:1 b=http://h:2"); err != nil {
		t.Fatal(err)
	}
	if err := l.Set("a=http://h:3"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "a", "b"}, l.Names()); diff != "" {
		t.Errorf("Names (-want +got):\n%s", diff)
	}
	if err := l.Validate(); err == nil || !strings.Contains(err.Error(), `"a" is given twice`) {
		t.Errorf("Validate() = %v, want an error that names the double", err)
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()

	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "replicas.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	got, err := ReadFile(write("replicas:\n- {name: a, url: 'http://h:1', block_size: 16}\n- name: b\n  url: http://h:2\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := List{{Name: "a", URL: "http://h:1", BlockSize: 16}, {Name: "b", URL: "http://h:2"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ReadFile (-want +got):\n%s", diff)
	}
	if _, err := ReadFile(write("replicas:\n- {name: a, zone: 'http://h:1'}\n")); err == nil || !strings.Contains(err.Error(), "zone") {
		t.Errorf("ReadFile with an unknown key: error = %v, want one that names it", err)
	}
}

package ops

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadSecret(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, text := range []string{"s 1", "s 1\n", " s 1\r\n\t"} {
		if got, err := ReadSecret(write("secret", text)); err != nil || string(got) != "s 1" {
			t.Errorf("ReadSecret of %q = %q, %v; want %q", text, got, err, "s 1")
		}
	}
	if got, err := ReadSecret(""); got != nil || err != nil {
		t.Errorf("ReadSecret without a path = %q, %v; want nothing", got, err)
	}
	for _, path := range []string{write("empty", " \n"), filepath.Join(dir, "none")} {
		if got, err := ReadSecret(path); err == nil {
			t.Errorf("ReadSecret(%s) = %q, want an error", path, got)
		}
	}
}

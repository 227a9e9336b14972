package ops

import (
	"bytes"
	"fmt"
	"os"
)

// ReadSecret returns the content of the file at path without the white space
// around it, which editors and secret stores add. A file without any other
// content is an error. An empty path is no secret: nil.
func ReadSecret(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read secret: %w", err)
	}
	if secret = bytes.TrimSpace(secret); len(secret) == 0 {
		return nil, fmt.Errorf("read secret: %s is empty, expected a secret", path)
	}
	return secret, nil
}

package proxy

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// connection is a response writer that notes the deadlines for reading.
type connection struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
}

func (c *connection) SetReadDeadline(t time.Time) error {
	c.deadlines = append(c.deadlines, t)
	return nil
}

// A deadline that outlives the body would end the request while its answer is
// still being sent.
func TestReadBodyIsPatientForEachPieceOnly(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		for _, failure := range []error{nil, io.ErrUnexpectedEOF} {
			body := iotest.OneByteReader(strings.NewReader("{}"))
			if failure != nil {
				body = io.MultiReader(body, iotest.ErrReader(failure))
			}
			c := &connection{ResponseRecorder: httptest.NewRecorder()}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
			got, err := ReadBody(c, r, 100)
			if string(got) != "{}" || !errors.Is(err, failure) {
				t.Errorf("ReadBody = %q, %v; want {}, %v", got, err, failure)
			}
			last := len(c.deadlines) - 1
			if last < 2 || !c.deadlines[last].IsZero() {
				t.Fatalf("deadlines are %v, want one for each piece and none at the end", c.deadlines)
			}
			for _, d := range c.deadlines[:last] {
				if want := time.Now().Add(bodyPatience); !d.Equal(want) {
					t.Errorf("deadline of a piece is %v, want %v", d, want)
				}
			}
		}
	})
}

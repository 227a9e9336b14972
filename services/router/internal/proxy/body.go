package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

const (
	// bodyPatience is how long a client may send nothing of its body.
	bodyPatience = 30 * time.Second
	// bodyGrow bounds the memory that an announced length alone can claim.
	bodyGrow = 1 << 20
)

// ReadBody takes in the body of a request to w, of at most limit bytes, from a
// client that may take its time between two pieces, but not for ever. The error
// is one of those that [BodyError] answers.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	if r.ContentLength > limit {
		// What follows on this connection is a body that nobody reads.
		w.Header().Set("Connection", "close")
		return nil, &http.MaxBytesError{Limit: limit}
	}
	var buf bytes.Buffer
	buf.Grow(int(min(max(r.ContentLength, 0), bodyGrow)) + bytes.MinRead)
	control := http.NewResponseController(w)
	_, err := buf.ReadFrom(&patient{Reader: http.MaxBytesReader(w, r.Body, limit), control: control})
	_ = control.SetReadDeadline(time.Time{}) // not supported: there was none
	return buf.Bytes(), err
}

// read takes in the request's body. Where it cannot, it answers and returns
// false.
func (p *Proxy) read(w http.ResponseWriter, r *http.Request, x *exchange) bool {
	body, err := ReadBody(w, r, p.cfg.MaxBodyBytes)
	if err != nil {
		p.refuse(w, x, BodyError(err))
		return false
	}
	x.body = body
	return true
}

// patient is a body whose sender may take its time, but not for ever.
type patient struct {
	io.Reader
	control *http.ResponseController
}

// Read implements [io.Reader].
func (b *patient) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(bodyPatience)) // not supported: no deadline
	return b.Reader.Read(p)
}

// bodyModel is the model that a JSON body names; empty if it names none. The
// last of several counts, and the name is matched exactly, as the engines do.
func bodyModel(body []byte) string {
	if len(body) == 0 || body[0] != '{' {
		return ""
	}
	var members map[string]json.RawMessage
	var model string
	if json.Unmarshal(body, &members) != nil || json.Unmarshal(members["model"], &model) != nil {
		return ""
	}
	return model
}

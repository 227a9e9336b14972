package proxy

import (
	"net/http"
	"strconv"
	"strings"
)

// The headers that tell a client where its request went. Those that a client
// sends are not passed on.
const (
	headerPrefix    = "X-Prefixroute-"
	headerEndpoint  = headerPrefix + "Endpoint"   // the replica's name
	headerPolicy    = headerPrefix + "Policy"     // what decided
	headerIndex     = headerPrefix + "Index"      // precise, approximate or mixed
	headerMatch     = headerPrefix + "Match"      // matched/total blocks of the replica
	headerBlockSize = headerPrefix + "Block-Size" // tokens per such block
)

// show writes the decision into an answer's headers.
func (x *exchange) show(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, headerPrefix) {
			delete(h, name)
		}
	}
	c := x.decision.Chosen()
	h.Set(headerEndpoint, c.Name)
	h.Set(headerPolicy, x.decision.Policy)
	if x.routed {
		h.Set(headerIndex, x.decision.View.Index)
		h.Set(headerMatch, strconv.Itoa(c.Matched)+"/"+strconv.Itoa(c.Total))
		h.Set(headerBlockSize, strconv.Itoa(c.BlockSize))
	}
}

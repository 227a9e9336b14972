package pick

import (
	"context"
	"sync"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
)

// match asks for one group, one lookup for each prompt at once, and fills in its
// members: precise ones if every lookup was answered for them by a live stream,
// else with the reason.
func (p *Picker) match(ctx context.Context, g *group) {
	answers := make([]indexclient.Answer, len(g.keys))
	errs := make([]error, len(g.keys))
	one := func(i int) {
		answers[i], errs[i] = p.lookup(ctx, g, g.usableKeys(i))
	}
	if len(g.keys) == 1 {
		one(0)
	} else {
		var wg sync.WaitGroup
		for i := range g.keys {
			wg.Go(func() { one(i) })
		}
		wg.Wait()
	}
	for _, c := range g.members {
		c.Precise, c.Total, c.BlockSize = true, g.usable, g.blockSize
		for i := range answers {
			if reason := c.take(answers[i], errs[i]); reason != ReasonNone {
				c.Precise, c.Reason = false, reason
				c.Matched, c.Total = 0, 0
				break
			}
		}
	}
}

// usableKeys are the keys of the blocks of prompt i that an engine could reuse.
func (g *group) usableKeys(i int) []hashing.Key {
	return g.keys[i][:g.usables[i]]
}

// lookup asks for one prompt. It asks for one without a usable block too: only
// an answer shows that the indexer is there and the streams still live.
func (p *Picker) lookup(ctx context.Context, g *group, keys []hashing.Key) (indexclient.Answer, error) {
	names := make([]string, len(g.members))
	for i, c := range g.members {
		names[i] = c.Name
	}
	return p.index.Match(ctx, indexclient.Query{
		Model: g.model, Scheme: p.cfg.Scheme.Name(), BlockSize: g.blockSize, Keys: keys, Replicas: names,
	})
}

// take adds one answer to c and says why it cannot.
func (c *Candidate) take(a indexclient.Answer, err error) Reason {
	if err != nil {
		return failureReason(indexclient.FailureOf(err))
	}
	m, ok := a.Matches[c.Name]
	if !ok {
		if _, other := a.Incompatible[c.Name]; other {
			return ReasonBlockSize
		}
		return ReasonNotFollowed
	}
	// The stream may have changed since the watch told of it.
	if reason := streamReason(m.State); reason != ReasonNone {
		return reason
	}
	c.Matched += m.GPU
	c.generation = m.Generation
	return ReasonNone
}

func failureReason(f indexclient.Failure) Reason {
	switch f {
	case indexclient.Deadline:
		return ReasonDeadline
	case indexclient.Unavailable:
		return ReasonUnavailable
	case indexclient.NoneFits:
		return ReasonScheme
	case indexclient.Canceled:
		return ReasonCanceled
	default:
		return ReasonMatchError
	}
}

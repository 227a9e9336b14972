package publish

import "sync"

// A fate is what becomes of a batch.
type fate uint8

const (
	sent        fate = iota
	lost             // not sent, but kept for replays
	lostForever      // neither: a gap that nobody can fill
)

// Faults says which batches get lost on their way. The zero value loses none.
type Faults struct {
	// Drop is how many of the next batches are lost.
	Drop int
	// Paused loses every batch until it is unset.
	Paused bool
	// Replayable says that replays have what is lost; otherwise it is lost from
	// the replay buffer too.
	Replayable bool
}

// FaultStatus is what the fault switch has done so far.
type FaultStatus struct {
	Faults
	Dropped uint64 // batches lost since the start
}

// faults is the switch itself. A batch's fate is decided when the engine
// publishes it, so a fault that is set hits the engine's very next batch,
// whatever is still queued.
type faults struct {
	mu     sync.Mutex
	status FaultStatus // guarded by mu
}

func (f *faults) next() fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch s := &f.status; {
	case s.Drop > 0:
		s.Drop--
		s.Dropped++
	case s.Paused:
		s.Dropped++
	default:
		return sent
	}
	if f.status.Replayable {
		return lost
	}
	return lostForever
}

// SetFaults replaces the faults.
func (p *Publisher) SetFaults(f Faults) {
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	p.faults.status.Faults = f
}

// Faults returns what is left of the faults that were set.
func (p *Publisher) Faults() FaultStatus {
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	return p.faults.status
}

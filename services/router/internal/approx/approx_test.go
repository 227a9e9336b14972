package approx

import (
	"strconv"
	"sync"
	"testing"
)

// chain is a prompt of n blocks whose hashes are from, from+1 and so on.
func chain(from, n int) []uint64 {
	c := make([]uint64, n)
	for i := range c {
		c[i] = uint64(from + i)
	}
	return c
}

func TestMatchIsTheLeadingRun(t *testing.T) {
	t.Parallel()

	x := New(100)
	x.Record("a", chain(0, 10))
	other := append(chain(0, 4), 99, 5, 6) // leaves the prompt after 4 blocks and comes back to it
	tests := []struct {
		replica string
		chain   []uint64
		want    int
	}{
		{"a", chain(0, 10), 10},
		{"a", chain(0, 12), 10},
		{"a", chain(0, 3), 3},
		{"a", other, 4},
		{"a", chain(1, 5), 5},
		{"a", nil, 0},
		{"b", chain(0, 10), 0},
	}
	for _, tt := range tests {
		if got := x.Match(tt.replica, tt.chain); got != tt.want {
			t.Errorf("Match(%s, %v) = %d, want %d", tt.replica, tt.chain, got, tt.want)
		}
	}
}

func TestOldestPromptsGoFirstAndFromTheirTails(t *testing.T) {
	t.Parallel()

	x := New(10)
	x.Record("a", chain(0, 6))
	x.Record("a", chain(100, 6)) // 12 blocks: two have to go
	if got := x.Match("a", chain(0, 6)); got != 4 {
		t.Errorf("older prompt matches %d blocks, want the 4 of its head", got)
	}
	if got := x.Match("a", chain(100, 6)); got != 6 {
		t.Errorf("newer prompt matches %d blocks, want 6", got)
	}
	x.Record("a", chain(0, 4)) // used again: now the other one is older
	x.Record("a", chain(200, 2))
	if got := x.Match("a", chain(0, 4)); got != 4 {
		t.Errorf("prompt used again matches %d blocks, want 4", got)
	}
	if got := x.Match("a", chain(100, 6)); got != 4 {
		t.Errorf("prompt not used again matches %d blocks, want 4", got)
	}
	x = New(3)
	x.Record("a", chain(0, 9))
	if got := x.Match("a", chain(0, 9)); got != 3 {
		t.Errorf("prompt longer than the capacity matches %d blocks, want 3", got)
	}
}

func TestCapacityIsPerReplica(t *testing.T) {
	t.Parallel()

	x := New(8)
	x.Resize("small", 2)
	x.Resize("large", 1000)
	for _, name := range []string{"small", "large", "unknown"} {
		x.Record(name, chain(0, 500))
	}
	for name, want := range map[string]int{"small": 2, "large": 500, "unknown": 8} {
		if got := x.Match(name, chain(0, 500)); got != want {
			t.Errorf("%s matches %d blocks, want %d", name, got, want)
		}
	}
	x.Resize("large", 0)
	if blocks, capacity := x.Size("large"); blocks != 8 || capacity != 8 {
		t.Errorf("large has %d of %d blocks after its size became unknown, want 8 of 8", blocks, capacity)
	}
	x.Resize("large", 1<<40)
	if _, capacity := x.Size("large"); capacity != MaxCapacity {
		t.Errorf("capacity is %d, want the bound %d", capacity, MaxCapacity)
	}
}

func TestClear(t *testing.T) {
	t.Parallel()

	x := New(100)
	x.Record("a", chain(0, 10))
	x.Record("b", chain(0, 10))
	x.Clear("a")
	x.Clear("never seen")
	if got := x.Match("a", chain(0, 10)); got != 0 {
		t.Errorf("cleared replica matches %d blocks, want 0", got)
	}
	if got := x.Match("b", chain(0, 10)); got != 10 {
		t.Errorf("other replica matches %d blocks, want 10", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()

	x := New(64)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := strconv.Itoa(i % 3)
			for j := range 200 {
				x.Record(name, chain(j, 16))
				x.Match(name, chain(j, 16))
				x.Resize(name, 32+j)
			}
		})
	}
	wg.Wait()
	for i := range 3 {
		if blocks, capacity := x.Size(strconv.Itoa(i)); blocks > capacity {
			t.Errorf("replica %d has %d blocks, want at most %d", i, blocks, capacity)
		}
	}
}

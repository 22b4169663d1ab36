package share

import (
	"cmp"
	"encoding/json"
	"time"
)

// claim is what one kiln of a machine uses of it, and wants. The others read it.
type claim struct {
	Format  string `json:"format"`
	Running int    `json:"running"`
	slotSum
	// Limit is what this kiln takes the machine to have.
	Limit slotSum `json:"limit"`
	// Wanted is since when a call waits for other kilns only. Beat is when that was last true: a
	// kiln that is stopped no longer updates it, and its turn passes on.
	Wanted time.Time `json:"wanted,omitzero"`
	Beat   time.Time `json:"beat,omitzero"`

	name string // of the file
}

const claimFormat = "kiln-claim/1"

// slotSum is a part of a machine.
type slotSum struct {
	CPU         int   `json:"cpu"`
	MemoryBytes int64 `json:"memory_bytes"`
}

// others is what the other kilns of the machine use.
type others struct {
	slotSum
	running int
	// limit is that of the machine: the largest that any kiln takes it to have.
	limit slotSum
	// first says that one of them has waited longer than this kiln has: its turn comes first.
	first bool
}

// How kilns take turns.
const (
	// machinePoll is how often a kiln that waits for others looks.
	machinePoll = 50 * time.Millisecond
	// machinePatience is how long one that has calls at work lets others fill the gaps before its
	// next one goes first; one that has none does not wait.
	machinePatience = 5 * time.Second
	// machineBeat is how old the last sign of one that waits may be.
	machineBeat = 10 * time.Second
)

// sum adds up the claims of others.
func (own *claim) sum(all []claim, now time.Time) others {
	o := others{limit: own.Limit}
	for i := range all {
		c := &all[i]
		o.running += c.Running
		o.CPU += c.CPU
		o.MemoryBytes += c.MemoryBytes
		o.limit.CPU, o.limit.MemoryBytes = max(o.limit.CPU, c.Limit.CPU), max(o.limit.MemoryBytes, c.Limit.MemoryBytes)
		if c.effective(now) && (!own.effective(now) || c.before(own)) {
			o.first = true
		}
	}
	return o
}

// before reports whether a kiln has waited longer than another one.
func (c *claim) before(other *claim) bool {
	return cmp.Or(c.Wanted.Compare(other.Wanted), cmp.Compare(c.name, other.name)) < 0
}

// effective reports whether others have to let this kiln go first.
func (c *claim) effective(now time.Time) bool {
	return !c.Wanted.IsZero() && now.Sub(c.Beat) < machineBeat && (c.Running == 0 || now.Sub(c.Wanted) >= machinePatience)
}

// mostCalls is more than any machine runs at once.
const mostCalls = 1 << 20

func (s slotSum) sane() bool {
	return s.CPU >= 0 && s.CPU <= mostCalls && s.MemoryBytes >= 0 && s.MemoryBytes <= 1<<50
}

func parseClaim(text []byte) (claim, bool) {
	var c claim
	if json.Unmarshal(text, &c) != nil || c.Format != claimFormat || c.Running < 0 || c.Running > mostCalls || !c.sane() || !c.Limit.sane() {
		return claim{}, false // no kiln has written it
	}
	return c, true
}

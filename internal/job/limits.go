package job

import (
	"strconv"

	"github.com/ojsd/ojsd/internal/job/retry"
)

// Limits bounds what is accepted. A zero value stands for the default (docs/reference/jobs.md, Limits).
// One value serves a whole request. It is passed by value, so a decoder cannot change it for others.
type Limits struct {
	MaxEnvelopeBytes int // one job object as received: 1 048 576
	MaxMetaBytes     int // meta after merging, compact: 65 536
	MaxResultBytes   int // result of an ack, compact: 1 048 576
	MaxDepth         int // levels of nesting of one attribute, itself included: 32

	// QueueRetry gives the policy that jobs of a queue inherit, with its max_attempts; nil, or false: the default one.
	QueueRetry func(queue string) (retry.Policy, bool)

	// NoTenants makes meta.tenant_id a member like any other.
	NoTenants bool

	// Tenant is that of the caller, to which everything belongs that it sends; "": what it sends says to which tenant it belongs.
	Tenant string

	// TenantRequired refuses what a caller without a tenant sends.
	TenantRequired bool
}

const (
	maxTypeBytes  = 255
	maxQueueBytes = 128
	maxKeyChars   = 256 // of an idempotency key

	maxMS = 36500 * 86_400 * 1000 // 36 500 days (docs/reference/http.md, Bodies)
)

// Envelope is the most bytes of one job object as received.
func (l Limits) Envelope() int { return orDefault(l.MaxEnvelopeBytes, 1_048_576) }

// Meta is the most bytes of meta after merging, compact.
func (l Limits) Meta() int { return orDefault(l.MaxMetaBytes, 65_536) }

// Result is the most bytes of the result of an ack, compact.
func (l Limits) Result() int { return orDefault(l.MaxResultBytes, 1_048_576) }

// Depth is the levels of nesting that one attribute may have, itself included.
func (l Limits) Depth() int { return orDefault(l.MaxDepth, 32) }

func orDefault(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}

// flatten is the hint for what is nested too deeply.
const flatten = "Flatten the value, or send its inner part as a string of JSON."

// shallow says how deep a value may be nested.
func shallow(l Limits) string { return "nested at most " + strconv.Itoa(l.Depth()) + " levels" }

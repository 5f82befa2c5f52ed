package domaintest

import (
	"context"
	"regexp"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Statements counts the statements that are sent on a Traced pool, by the name of the query.
type Statements struct {
	mu   sync.Mutex
	sent map[string]int
}

var queryName = regexp.MustCompile(`^-- name: (\w+) `)

// TraceQueryStart counts a statement.
func (s *Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if name := queryName.FindStringSubmatch(q.SQL); name != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sent == nil {
			s.sent = map[string]int{}
		}
		s.sent[name[1]]++
	}
	return ctx
}

// TraceQueryEnd does nothing.
func (*Statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Sent returns how often the query was sent.
func (s *Statements) Sent(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[name]
}

// Total returns how many named queries were sent.
func (s *Statements) Total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, count := range s.sent {
		n += count
	}
	return n
}

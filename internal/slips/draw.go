package slips

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
)

// perFunction is how many slips of one function a draw has at most, while others remain.
const perFunction = 2

// shuffled orders slips as they are drawn. Each kind is as likely as the others to be next, and within a kind each place.
// The place of a slip comes from a hash of the seed and its text, so that a change of code elsewhere moves few others.
func shuffled(all []*Slip, seed uint64) []*Slip {
	rnd := rand.New(rand.NewPCG(seed, 0))
	byKind := map[Kind][]*Slip{}
	for _, s := range all {
		byKind[s.Kind] = append(byKind[s.Kind], s)
	}
	var kinds []Kind
	for kind, list := range byKind {
		hashes := make(map[*Slip]string, len(list))
		for _, s := range list {
			hash := sha256.Sum256(fmt.Appendf(nil, "%d %s", seed, s.Identity()))
			hashes[s] = string(hash[:])
		}
		slices.SortFunc(list, func(a, b *Slip) int {
			return cmp.Or(cmp.Compare(hashes[a], hashes[b]), a.start-b.start, a.end-b.end)
		})
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	var order, rest []*Slip
	taken := map[functionName]int{}
	for len(kinds) > 0 {
		i := rnd.IntN(len(kinds))
		list := byKind[kinds[i]]
		s := list[0]
		if taken[s.key]++; taken[s.key] <= perFunction {
			order = append(order, s)
		} else {
			rest = append(rest, s)
		}
		if byKind[kinds[i]] = list[1:]; len(list) == 1 {
			kinds = slices.Delete(kinds, i, i+1)
		}
	}
	return append(order, rest...)
}

// Draw takes the first n slips that compile, and numbers them.
func (t *Tree) Draw(ctx context.Context, all []*Slip, seed uint64, n int, sql sqlCheck) ([]*Slip, error) {
	var drawn []*Slip
	for order := shuffled(all, seed); len(drawn) < n && len(order) > 0; {
		batch := order[:min(len(order), n-len(drawn)+n/4+1)]
		order = order[len(batch):]
		invalid, err := t.invalid(ctx, batch, sql)
		if err != nil {
			return nil, err
		}
		for _, s := range batch {
			if !invalid[s] && len(drawn) < n {
				drawn = append(drawn, s)
				s.ID = len(drawn)
			}
		}
	}
	return drawn, nil
}

// sqlCheck says whether PostgreSQL takes a query or the statement that creates a function.
type sqlCheck func(ctx context.Context, s *Slip) (bool, error)

// invalid finds the slips that do not compile.
func (t *Tree) invalid(ctx context.Context, batch []*Slip, sql sqlCheck) (map[*Slip]bool, error) {
	invalid := map[*Slip]bool{}
	byPackage := map[*Package][]*Slip{}
	for i, s := range batch {
		s.ID = i + 1 // until the draw is complete
		switch {
		case s.query == nil && s.routine == nil:
			byPackage[s.pkg] = append(byPackage[s.pkg], s)
		default:
			ok, err := sql(ctx, s)
			if err != nil {
				return nil, err
			}
			invalid[s] = !ok
		}
	}
	for p, list := range byPackage {
		for _, s := range t.notCompiled(p, list) {
			invalid[s] = true
		}
	}
	return invalid, nil
}

package queue

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/text/unicode/norm"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// What makes a job equivalent to another one (docs/reference/unique.md): the key of a job, the lock of that key, the search for jobs that
// hold it, and the decision what to do about them. unique_insert.go stores and cancels, in the transaction that holds the lock.

// uniqueKey is the unique key of a job with a policy: the one that its client computed, or 64 hex digits of a SHA-256 over the parts
// of the job that its policy names, as canonical JSON (docs/reference/unique.md, Key). Tenants have keys of their own: that of a tenant's
// job is a SHA-256 over the tenant and this key, as in ojs.tenant_key of SQL.
//
// ojs.enqueue computes no key: it takes one that its caller has made. The key is fixed when the job is stored: changes of its
// meta later do not move it.
func uniqueKey(j *job.Job) string {
	key := j.Unique.Key
	if key == "" {
		sum := sha256.Sum256(appendCanonical(nil, identity(j)))
		key = hex.EncodeToString(sum[:])
	}
	// The lock of a key is made of its first 64 bits, so tenants do not wait for each other either.
	if tenant := job.TenantOf(j.Lane); tenant != "" {
		sum := sha256.Sum256([]byte(tenant + "/" + key))
		key = hex.EncodeToString(sum[:])
	}
	return key
}

// AssignUniqueKeys gives the jobs that have a policy their keys.
// It may run several times: the key of the first time stays.
func AssignUniqueKeys(jobs ...*job.Job) {
	for _, j := range jobs {
		if j.Unique != nil && j.UniqueKey == "" {
			j.UniqueKey = uniqueKey(j)
		}
	}
}

// identity is the JSON object that identifies a job, before it is made canonical.
// The type always counts, also if the policy does not name it.
func identity(j *job.Job) []byte {
	u := j.Unique
	b := append([]byte(`{"type":`), jsonread.Quote(j.Type)...)
	if u.Text != "" {
		return append(append(append(b, `,"key":`...), jsonread.Quote(u.Text)...), '}')
	}
	for _, key := range u.Keys {
		switch key {
		case "queue":
			b = append(append(b, `,"queue":`...), jsonread.Quote(j.Queue)...)
		case "args":
			b = appendArgs(append(b, `,"args":`...), u, j.Args)
		case "meta":
			b = appendSelected(append(b, `,"meta":`...), u.MetaKeys, membersOf(j.Meta))
		}
	}
	return append(b, '}')
}

// appendArgs appends all of args, or an object with the named ones: digits are an index, and any other name is a member of the
// first object among args that has it. One pass over args, however many names there are.
// A name that addresses nothing is null here. Decoding has refused it for jobs of clients.
func appendArgs(b []byte, u *job.Unique, args jsontext.Value) []byte {
	if len(u.ArgsKeys) == 0 {
		return append(b, args...)
	}
	wanted := make(map[string]bool, len(u.ArgsKeys))
	for _, name := range u.ArgsKeys {
		wanted[name] = !isIndex(name)
	}
	// A name that was found is not wanted any more, so the first object that has it counts.
	found := make(map[string]jsontext.Value, len(u.ArgsKeys))
	var elements []jsontext.Value
	for e := range jsonread.Elements(args) {
		elements = append(elements, e)
		if e[0] != '{' {
			continue
		}
		own := make(map[string]jsontext.Value)
		for literal, value := range jsonread.Members(e) {
			if name := jsonread.Name(literal); wanted[string(name)] {
				own[string(name)] = value // the last of equal names
			}
		}
		for name, value := range own {
			found[name], wanted[name] = value, false
		}
	}
	for _, name := range u.ArgsKeys {
		if i, err := strconv.Atoi(name); err == nil && isIndex(name) && i < len(elements) {
			found[name] = elements[i]
		}
	}
	return appendSelected(b, u.ArgsKeys, found)
}

// appendSelected appends an object with the named members; one that is missing is null.
func appendSelected(b []byte, names []string, values map[string]jsontext.Value) []byte {
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, jsonread.Quote(name)...), ':')
		if v := values[name]; v != nil {
			b = append(b, v...)
		} else {
			b = append(b, `null`...)
		}
	}
	return append(b, '}')
}

// membersOf is nil for a job without meta: all selected members are null then.
func membersOf(object jsontext.Value) map[string]jsontext.Value {
	if object == nil {
		return nil
	}
	values := make(map[string]jsontext.Value)
	for literal, value := range jsonread.Members(object) {
		values[string(jsonread.Name(literal))] = value
	}
	return values
}

// isIndex takes "" for one, but that is no number, and so addresses nothing.
func isIndex(name string) bool { return strings.Trim(name, "0123456789") == "" }

// lockOf is the advisory lock of a key. Keys that share their first 64 bits wait for each other, and nothing else.
// UniqueLockDiscarded and ojs.enqueue compute the same number in SQL.
func lockOf(key string) int64 {
	n, err := strconv.ParseUint(key[:16], 16, 64)
	if err != nil {
		panic("queue: a unique key has to be 64 hex digits: " + err.Error()) // decoding refuses any other
	}
	return int64(n) //nolint:gosec // the same 64 bits
}

// appendCanonical appends v in the form of RFC 8785, with all strings in Unicode NFC. It differs from the RFC where that has no
// form: integers beyond 2^53 keep their digits instead of being rounded, numbers beyond a double keep their literal, and half of
// a surrogate pair, which JavaScript clients can send, stays an escape. Of equal names the last one counts.
//
// v is valid JSON that jsonread.Check has accepted. A change of the output changes the keys of all jobs that are enqueued later,
// so that they do not find those that are stored: the vectors in docs/reference/unique.md, Key are tests. Clients that encrypt
// args compute the same key.
func appendCanonical(b []byte, v jsontext.Value) []byte {
	switch v[0] {
	case '{':
		return appendObject(b, v)
	case '[':
		b = append(b, '[')
		first := true
		for e := range jsonread.Elements(v) {
			if !first {
				b = append(b, ',')
			}
			first, b = false, appendCanonical(b, e)
		}
		return append(b, ']')
	case '"':
		return appendString(b, normalized(v))
	case 't', 'f', 'n':
		return append(b, v...)
	}
	return appendNumber(b, v)
}

type member struct {
	name  []byte
	units []uint16 // the order of the RFC is that of UTF-16
	value jsontext.Value
	// The place in the object, so that the last of equal names can be found after the sort.
	place int
}

// appendObject takes names for equal if they are equal in NFC, however they were escaped.
func appendObject(b []byte, v jsontext.Value) []byte {
	var members []member
	for literal, value := range jsonread.Members(v) {
		name := normalized(literal)
		members = append(members, member{name, unitsOf(name), value, len(members)})
	}
	slices.SortFunc(members, func(x, y member) int { // of equal names the last one comes first
		return cmp.Or(slices.Compare(x.units, y.units), y.place-x.place)
	})
	members = slices.CompactFunc(members, func(x, y member) bool { return bytes.Equal(x.name, y.name) })
	b = append(b, '{')
	for i, m := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, m.name), ':')
		b = appendCanonical(b, m.value)
	}
	return append(b, '}')
}

// appendNumber appends a number as JavaScript does.
//
// 5, 5.0 and 50e-1 are one number, as for JavaScript. The order of the tests matters: an integer beyond a double must not be
// parsed as one.
func appendNumber(b []byte, v jsontext.Value) []byte {
	if n, kind := jsonread.Int(v); kind == jsonread.IsInt {
		return strconv.AppendInt(b, n, 10)
	}
	// An integer beyond int64 keeps its digits.
	if !bytes.ContainsAny(v, ".eE") {
		return append(b, v...)
	}
	f, err := strconv.ParseFloat(string(v), 64)
	// A number beyond a double keeps its literal.
	if err != nil {
		return append(b, v...)
	}
	if f == 0 {
		return append(b, '0') // what a double cannot tell from 0 is 0 for JavaScript, and -0 is 0
	}
	return append(b, jsontext.Float(f).String()...)
}

// normalized is the content of a string literal in NFC. A lone surrogate is the three bytes that UTF-8 would have for it, which no
// valid text contains.
// Most literals have no escapes, and are not copied for them.
func normalized(literal jsontext.Value) []byte {
	if text := literal[1 : len(literal)-1]; !bytes.ContainsRune(text, '\\') {
		return norm.NFC.Bytes(text)
	}
	return norm.NFC.Bytes(unescaped(literal[1 : len(literal)-1]))
}

// unescaped keeps lone surrogates; jsontext.AppendUnquote would replace them by U+FFFD, and so make different texts equal.
func unescaped(text []byte) []byte {
	b := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			b = append(b, text[i])
			i++
			continue
		}
		if text[i+1] != 'u' {
			b = append(b, escapes[text[i+1]])
			i += 2
			continue
		}
		r := unit(text[i+2:])
		i += 6
		// Two escapes that form a pair are one character. A high surrogate without a low one stays by itself.
		if utf16.IsSurrogate(r) && i+6 <= len(text) && text[i] == '\\' && text[i+1] == 'u' {
			if pair := utf16.DecodeRune(r, unit(text[i+2:])); pair != utf8.RuneError {
				r = pair
				i += 6
			}
		}
		if utf16.IsSurrogate(r) {
			b = append(b, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

// escapes has what stands for a character behind the backslash. \u is not among them.
var escapes = ['u']byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unit reads the four digits behind \u.
func unit(digits []byte) rune {
	n, _ := strconv.ParseUint(string(digits[:4]), 16, 16) // valid JSON
	return rune(n)
}

// surrogate reads a lone surrogate as unescaped writes it.
// UTF-8 never has these bytes: 0xED is followed by less than 0xA0 in valid text.
func surrogate(b []byte) (rune, bool) {
	if len(b) < 3 || b[0] != 0xED || b[1] < 0xA0 {
		return 0, false
	}
	return 0xD000 | rune(b[1]&0x3F)<<6 | rune(b[2]&0x3F), true
}

// unitsOf lets code points above U+FFFF sort by their surrogates, before U+E000 to U+FFFF; a comparison of bytes would sort them behind.
func unitsOf(text []byte) []uint16 {
	units := make([]uint16, 0, len(text))
	for i := 0; i < len(text); {
		if r, ok := surrogate(text[i:]); ok {
			units = append(units, uint16(r))
			i += 3
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		units = utf16.AppendRune(units, r)
		i += n
	}
	return units
}

// appendString escapes only what JSON requires, with the short form where there is one, as RFC 8785 says.
func appendString(b, text []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ' && c != 0xED:
			b = append(b, c)
		case c == 0xED:
			if r, ok := surrogate(text[i:]); ok {
				b = append(b, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
				i += 2
			} else {
				b = append(b, c)
			}
		case short[c] != 0:
			b = append(b, '\\', short[c])
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(b, '"')
}

// short is the reverse of escapes, for control characters; 0: there is no short form.
var short = [' ']byte{'\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}

// uniqueCheck is the look for equivalent jobs of one insert.
// The zero value waits for locks as long as the transaction does.
type uniqueCheck struct {
	// LockTimeout is how long the transaction waits for a lock from here on, in the notation of Postgres. "": unchanged.
	LockTimeout string

	// Try leaves keys that another transaction has locked alone, instead of waiting for them.
	// Flushes set it, because their other callers must not wait; see unique_insert.go.
	Try bool
}

// uniqueFound is the outcome of a uniqueCheck.
type uniqueFound struct {
	Verdicts []uniqueVerdict // of each job
	Free     []bool          // by Try: whether no other transaction has locked the key of the job. If one has, the verdict means nothing
}

// uniqueSearch is what has to be known about a key.
// One per key, however many jobs of the insert have it.
type uniqueSearch struct {
	key  string
	lock int64
	// It is the union of those of all policies of the key, and period the longest: decide applies each policy by itself.
	states []ojs.JobState
	period time.Duration // 0: without limit
	all    bool          // whether the oldest job that blocks is not enough
}

// searches are those for the keys of jobs with a policy, by their locks.
// They are sorted by lock: two transactions that lock the same keys in another order would deadlock. Jobs without a policy that
// have a key take no part, as they prevent nothing.
func searches(jobs []*job.Job) []*uniqueSearch {
	var list []*uniqueSearch
	byKey := make(map[string]*uniqueSearch)
	for _, j := range jobs {
		u := j.Unique
		if u == nil {
			continue
		}
		s := byKey[j.UniqueKey]
		switch {
		case s == nil:
			s = &uniqueSearch{key: j.UniqueKey, lock: lockOf(j.UniqueKey), states: u.States, period: u.Period}
			byKey[j.UniqueKey], list = s, append(list, s)
		case !slices.Equal(s.states, u.States) || s.period != u.Period:
			// With two policies the oldest job may block only one of them, hence all. A period of 0 is the longest.
			s.all, s.states = true, slices.Clone(s.states)
			for _, state := range u.States {
				if !slices.Contains(s.states, state) {
					s.states = append(s.states, state)
				}
			}
			if shortest := min(s.period, u.Period); shortest == 0 {
				s.period = 0
			} else {
				s.period = max(s.period, u.Period)
			}
		}
		// reject and ignore are answered with the oldest job; replace needs every job.
		s.all = s.all || u.OnConflict != "reject" && u.OnConflict != "ignore"
	}
	slices.SortFunc(list, func(a, b *uniqueSearch) int { return cmp.Compare(a.lock, b.lock) })
	return list
}

// done are the states of the search that only jobs in jobs_done have.
// They are looked for in a statement of its own, and only if the policy names them: that table has a partition per day.
func (s *uniqueSearch) done() (states []ojs.JobState) {
	for _, state := range s.states {
		if state == ojs.StateCompleted || state == ojs.StateCancelled {
			states = append(states, state)
		}
	}
	return states
}

// add adds the search for jobs in the states to the parameters, which have one element per key. The states are one text, because PostgreSQL
// has no arrays of arrays with different lengths.
func (s *uniqueSearch) add(p *dbsqlc.UniqueListHoldersParams, states []ojs.JobState) {
	words := make([]string, len(states))
	for i, state := range states {
		words[i] = string(state)
	}
	limit := int64(1)
	if s.all {
		limit = 0
	}
	micros := s.period.Microseconds()
	if s.period > 0 {
		// 0 would mean no limit.
		micros = max(1, micros)
	}
	p.Keys, p.StatesLists = append(p.Keys, s.key), append(p.StatesLists, strings.Join(words, ","))
	p.PeriodsUs, p.MaxRows = append(p.PeriodsUs, micros), append(p.MaxRows, limit)
}

// Run locks the keys of the jobs until the end of the transaction, looks for the jobs that hold them, and decides. It is one round
// trip: each statement of a pipeline has a snapshot of its own.
//
// The statements must follow each other: the look has to see what the last holder of a lock has committed. The locks are advisory
// and end with the transaction, also for keys that no job has. After an error the transaction is over.
func (c uniqueCheck) Run(ctx context.Context, tx pgx.Tx, jobs []*job.Job) (uniqueFound, error) {
	var locks []int64
	var live, done dbsqlc.UniqueListHoldersParams
	for _, s := range searches(jobs) {
		locks = append(locks, s.lock)
		// States of finished jobs do no harm here: ojs.jobs has no such rows, but for discarded ones.
		s.add(&live, s.states)
		if states := s.done(); states != nil {
			s.add(&done, states)
		}
	}

	// A pipeline calls each step twice: they only assign.
	var taken []int64
	var holders []dbsqlc.UniqueListHoldersRow
	var ended []dbsqlc.UniqueListDoneRow
	var now pgtype.Timestamptz
	var steps []pg.Step
	// It holds to the end of the transaction, also for the rows of jobs and queues that are locked after the keys.
	if c.LockTimeout != "" {
		steps = append(steps, func(db dbsqlc.DBTX) error { return dbsqlc.New(db).SystemLockTimeout(ctx, c.LockTimeout) })
	}
	steps = append(steps, func(db dbsqlc.DBTX) (err error) {
		if c.Try {
			taken, err = dbsqlc.New(db).UniqueTryLock(ctx, locks)
			return err
		}
		return dbsqlc.New(db).UniqueLock(ctx, locks)
	}, func(db dbsqlc.DBTX) (err error) {
		holders, err = dbsqlc.New(db).UniqueListHolders(ctx, live)
		return err
	})
	if done.Keys != nil {
		steps = append(steps, func(db dbsqlc.DBTX) (err error) {
			ended, err = dbsqlc.New(db).UniqueListDone(ctx, dbsqlc.UniqueListDoneParams(done))
			return err
		})
	}
	// The clock last, so that it is read under the locks. Only for jobs that are scheduled for an absolute time it decides the state.
	if slices.ContainsFunc(jobs, func(j *job.Job) bool { return j.ScheduledAt.Set && !j.ScheduledAt.Relative }) {
		steps = append(steps, func(db dbsqlc.DBTX) (err error) {
			now, err = dbsqlc.New(db).SystemPing(ctx)
			return err
		})
	}
	if err := pg.Pipeline(ctx, tx, steps...); err != nil {
		return uniqueFound{}, err
	}

	held := make(map[string][]uniqueHolder, len(holders))
	for _, r := range holders {
		held[r.Key] = append(held[r.Key], storedHolder(r))
	}
	for _, r := range ended {
		held[r.Key] = append(held[r.Key], storedHolder(dbsqlc.UniqueListHoldersRow(r)))
	}
	found := uniqueFound{Verdicts: decide(jobs, held, now.Time)}
	if c.Try {
		found.Free = make([]bool, len(jobs))
		for i, j := range jobs {
			found.Free[i] = j.Unique == nil || slices.Contains(taken, lockOf(j.UniqueKey))
		}
	}
	return found, nil
}

// storedHolder has storedJob for its place in the request: it has none.
func storedHolder(r dbsqlc.UniqueListHoldersRow) uniqueHolder {
	return uniqueHolder{
		ID: r.ID, Key: r.Key, State: ojs.JobState(r.State), ScheduledAt: job.When{Set: r.ScheduledAt.Valid, At: r.ScheduledAt.Time},
		Item: storedJob, createdAt: r.CreatedAt.Time, seenAt: r.Now.Time,
	}
}

// liveHolders finds, for each key that a job holds which has not ended, the oldest such job. The caller has locked the keys.
// A manual retry asks for them. Only jobs that have not ended count then, whatever their policies said.
func liveHolders(ctx context.Context, q *dbsqlc.Queries, keys []string) (map[string]uniqueHolder, error) {
	var p dbsqlc.UniqueListHoldersParams
	for _, key := range keys {
		(&uniqueSearch{key: key}).add(&p, job.LiveStates)
	}
	rows, err := q.UniqueListHolders(ctx, p)
	held := make(map[string]uniqueHolder, len(rows))
	for _, r := range rows {
		held[r.Key] = storedHolder(r)
	}
	return held, err
}

// storedJob is the Item of a holder that is no job of the request.
const storedJob = -1

// uniqueHolder is a job with a key.
type uniqueHolder struct {
	ID  [16]byte
	Key string
	// judge changes it in memory to cancelled when a job of the request replaces the holder, so that later jobs of the request
	// see it so.
	State       ojs.JobState
	ScheduledAt job.When
	Item        int // index of the job in the request, which has not been inserted yet; or storedJob

	// Both are by the clock of the database.
	createdAt, seenAt time.Time // of a stored job: when it was created, and the clock of the statement that found it
}

// uniqueVerdict is what is to be done with a job. The zero value stores it.
// It holds only while the locks do, and for a key that was locked; see uniqueFound.
type uniqueVerdict struct {
	Existing *uniqueHolder // not nil: the job is not stored, because of this one
	Ignore   bool          // if it is not stored: that is no error
	// Both stored ones and earlier jobs of the request.
	Replaced []uniqueHolder // to cancel if it is stored
	Takes    *job.When      // if it is stored: the time for which it is scheduled instead of its own
}

// Prevented reports whether another job prevents that the job is stored.
func (v uniqueVerdict) Prevented() bool { return v.Existing != nil }

// decide gives the verdicts that the jobs would get one after the other. held has the stored jobs of each key; now is only used for
// jobs that are scheduled for a time.
//
// It is pure: no statement, no clock. A job that is stored joins the holders of its key, so that later ones of the request are
// judged as if it were in the table. The caller must store exactly what the verdicts say, or decide again.
func decide(jobs []*job.Job, held map[string][]uniqueHolder, now time.Time) []uniqueVerdict {
	verdicts := make([]uniqueVerdict, len(jobs))
	// Oldest first: reject and ignore name the first one that blocks. Jobs of the request are appended behind the stored ones.
	for _, holders := range held {
		slices.SortFunc(holders, func(a, b uniqueHolder) int {
			return cmp.Or(a.createdAt.Compare(b.createdAt), bytes.Compare(a.ID[:], b.ID[:]))
		})
	}
	for i, j := range jobs {
		if j.UniqueKey == "" {
			continue
		}
		holders := held[j.UniqueKey]
		if j.Unique != nil {
			verdicts[i] = judge(j.Unique, holders)
		}
		if v := verdicts[i]; !v.Prevented() {
			own := uniqueHolder{ID: j.ID, Key: j.UniqueKey, State: stateOf(j, now), ScheduledAt: j.ScheduledAt, Item: i}
			if v.Takes != nil {
				own.State, own.ScheduledAt = ojs.StateScheduled, *v.Takes
			}
			held[j.UniqueKey] = append(holders, own)
		}
	}
	return verdicts
}

// judge applies a policy, and marks the jobs that are to be replaced as cancelled.
// reject and ignore stop at the oldest job that blocks. replace goes through all of them.
func judge(u *job.Unique, holders []uniqueHolder) (v uniqueVerdict) {
	oldest := true
	for i := range holders {
		h := &holders[i]
		// The states and the period are those of the new job. A job of the request has no age.
		young := u.Period == 0 || h.Item != storedJob || h.seenAt.Before(h.createdAt.Add(u.Period))
		if !young || !slices.Contains(u.States, h.State) {
			continue
		}
		switch u.OnConflict {
		case "reject", "ignore":
			existing := *h
			return uniqueVerdict{Existing: &existing, Ignore: u.OnConflict == "ignore"}
		}
		// Only the oldest of them gives its time (docs/reference/unique.md, Conflicts).
		if oldest && u.OnConflict == "replace_except_schedule" && h.State == ojs.StateScheduled {
			at := h.ScheduledAt
			v.Takes = &at
		}
		oldest = false
		if !h.State.Terminal() { // what has ended stays as it is
			v.Replaced = append(v.Replaced, *h)
			h.State = ojs.StateCancelled
		}
	}
	return v
}

// stateOf is the state in which the job will be stored.
// It only matters for policies that do not name all states. A time that is reached between this clock and the insert makes a
// difference of a moment.
func stateOf(j *job.Job, now time.Time) ojs.JobState {
	switch at := j.ScheduledAt; { // it has In, At or neither
	case j.Pending:
		return ojs.StatePending
	case at.In > 0, at.At.After(now):
		return ojs.StateScheduled
	}
	return ojs.StateAvailable
}

package ojsadmin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/ojsd/ojsd/ojs"
)

// MetaCronOwner and MetaCronRelease are the members of Job.Meta by which [Client.SyncCrons] marks the crons of a [CronSet]. The jobs of
// these crons have them in their meta, too.
const (
	MetaCronOwner   = "cron_owner"
	MetaCronRelease = "cron_release"
)

// CronSet is all the crons of one owner, such as a program.
type CronSet struct {
	Owner string // the same in all releases of the program; two programs must not share it
	// Release decides between two releases that run at the same time, during a rollout: a later one has a higher number, such as that of
	// the deployment or the time of the build. Going back to older code needs a higher number, too. Without it, the latest call counts.
	Release int64
	Crons   []Cron
}

// CronSetResult is what [Client.SyncCrons] has changed: names of crons, sorted.
type CronSetResult struct {
	Created, Updated, Deleted []string
	// Superseded is set if a later release has made the crons of the owner. Nothing was changed then.
	Superseded bool
}

// SyncCrons makes the crons of an owner what the set lists: it creates and replaces those in the list, and deletes those that an earlier
// call for the same owner has made and that are not in the list any more. Programs call it when they start. Other crons are never touched:
// if one of the names in the list has another owner, or none, SyncCrons changes nothing and returns an error that names it. To hand such a
// cron over, put it once with the owner in Job.Meta[MetaCronOwner].
//
// No request is sent for a cron that is equal already, apart from the list. A cron that changes keeps its history, and its next tick as far
// as the schedule stays the same; one that is deleted loses its history. A cron that an operator has paused stays paused. Paused pauses a
// cron, but a set without it resumes none: that is for [Client.ResumeCron].
//
// During a rollout, processes of two releases call SyncCrons with different sets. With Release in both, a call of the older release changes
// nothing once a call of the newer one has marked a cron, and returns with Superseded set. Without it, the latest call counts: an old
// process that starts again deletes the crons that the new release has added, until the next call of a new process. Two calls at the same
// moment may leave a cron of the older set behind, and without Release also delete one of the newer set; the next call repairs that. After
// an error, which comes with what was changed before it, the call can be repeated.
func (c *Client) SyncCrons(ctx context.Context, set CronSet) (*CronSetResult, error) {
	result, err := c.syncCrons(ctx, set)
	if err != nil {
		err = fmt.Errorf("ojsadmin: sync the crons of %q: %w", set.Owner, err)
	}
	return result, err
}

func (c *Client) syncCrons(ctx context.Context, set CronSet) (*CronSetResult, error) {
	wanted, err := set.marked()
	if err != nil {
		return nil, err
	}
	existing, err := c.storedCrons(ctx, wanted)
	if err != nil {
		return nil, err
	}
	result := &CronSetResult{}
	var foreign []string
	for _, name := range slices.Sorted(maps.Keys(existing)) {
		owner, release := existing[name].mark()
		switch {
		case owner == set.Owner:
			result.Superseded = result.Superseded || release > set.Release
		case wanted[name] != nil:
			foreign = append(foreign, fmt.Sprintf("%q of the owner %q", name, owner))
		default:
			delete(existing, name)
		}
	}
	switch {
	case len(foreign) > 0:
		return nil, fmt.Errorf("nothing was changed, because there are crons of these names already: %s", strings.Join(foreign, ", "))
	case result.Superseded:
		return result, nil
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		cron, old := wanted[name], existing[name]
		delete(existing, name)
		if old != nil {
			cron.Paused = cron.Paused || !old.Enabled
		}
		body, err := cron.body()
		if err != nil {
			return result, fmt.Errorf("cron %q: %w", name, err)
		}
		if old != nil && old.is(body) {
			continue
		}
		if _, err := c.PutCron(ctx, *cron); err != nil {
			return result, fmt.Errorf("cron %q: %w", name, err)
		}
		if old == nil {
			result.Created = append(result.Created, name)
		} else {
			result.Updated = append(result.Updated, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(existing)) {
		// A cron that is gone was deleted by another process at the same time.
		if err := c.DeleteCron(ctx, name); err != nil && !errors.Is(err, ojs.ErrNotFound) {
			return result, fmt.Errorf("cron %q: %w", name, err)
		}
		result.Deleted = append(result.Deleted, name)
	}
	return result, nil
}

// marked gives the crons of the set by name, with the mark in their meta.
func (set CronSet) marked() (map[string]*Cron, error) {
	if set.Owner == "" {
		return nil, errors.New("the set has no Owner")
	}
	crons := map[string]*Cron{}
	for _, cron := range set.Crons {
		if cron.Name == "" {
			return nil, errors.New("a cron of the set has no Name")
		}
		if crons[cron.Name] != nil {
			return nil, fmt.Errorf("cron %q is in the set twice", cron.Name)
		}
		meta := map[string]any{}
		maps.Copy(meta, cron.Job.Meta) // that of the caller stays as it is
		meta[MetaCronOwner] = set.Owner
		if set.Release != 0 {
			meta[MetaCronRelease] = set.Release
		}
		cron.Job.Meta = meta
		crons[cron.Name] = &cron
	}
	return crons, nil
}

// storedCron is a cron as the server shows it, with exact numbers.
type storedCron struct {
	Name        string          `json:"name"`
	Expression  string          `json:"expression"`
	Timezone    string          `json:"timezone"`
	Type        string          `json:"type"`
	Args        json.RawMessage `json:"args"`
	Meta        json.RawMessage `json:"meta"`
	Options     json.RawMessage `json:"options"`
	Overlap     Overlap         `json:"overlap_policy"`
	Enabled     bool            `json:"enabled"`
	Description string          `json:"description"`
}

// storedCrons reads all crons, by name. A list leaves out the content of crons when it becomes too long, and the place of a cron in it
// moves while others are added and deleted. So those without content are read one by one, and so are the wanted ones that were not found.
func (c *Client) storedCrons(ctx context.Context, wanted map[string]*Cron) (map[string]*storedCron, error) {
	crons, incomplete := map[string]*storedCron{}, map[string]bool{}
	for name := range wanted {
		incomplete[name] = true
	}
	for cron, err := range All(func(page PageOptions) (*Page[storedCron], error) {
		page.Limit = 1000
		return list[storedCron](ctx, c, get("/cron", page.query()), "cron_jobs", "crons")
	}) {
		if err != nil {
			return nil, err
		}
		crons[cron.Name] = cron
		incomplete[cron.Name] = cron.Args == nil
	}
	for _, name := range slices.Sorted(maps.Keys(incomplete)) {
		if !incomplete[name] {
			continue
		}
		cron, err := member[storedCron](ctx, c, get(cronPath(name, ""), nil), "cron_job")
		switch {
		case errors.Is(err, ojs.ErrNotFound):
			delete(crons, name)
		case err != nil:
			return nil, err
		default:
			crons[name] = cron
		}
	}
	return crons, nil
}

// mark is who has made the cron by SyncCrons; an empty owner: nobody.
func (s *storedCron) mark() (owner string, release int64) {
	meta, _ := exact(s.Meta).(map[string]any)
	owner, _ = meta[MetaCronOwner].(string)
	number, _ := meta[MetaCronRelease].(json.Number)
	release, _ = number.Int64() // 0 of what is no number
	return owner, release
}

// is reports whether the server has stored what a request would send.
func (s *storedCron) is(b *cronBody) bool {
	meta, sent := exact(s.Meta), exact(b.Meta).(map[string]any)
	if m, ok := meta.(map[string]any); ok && sent["tenant_id"] == nil {
		delete(m, "tenant_id") // the server has added that of the request
	}
	options := map[string]any{}
	for name, value := range b.Options {
		options[name] = exact(value)
	}
	return s.Expression == b.Expression && s.Timezone == cmp.Or(b.Timezone, "UTC") && s.Type == b.Type && s.Description == b.Description &&
		s.Overlap == cmp.Or(b.Overlap, OverlapSkip) && s.Enabled == (b.Enabled == nil) && reflect.DeepEqual(meta, any(sent)) &&
		reflect.DeepEqual(exact(s.Args), exact(b.Args)) && reflect.DeepEqual(exact(s.Options), any(options))
}

// exact decodes JSON, with numbers as they are written.
func exact(data json.RawMessage) (value any) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	_ = d.Decode(&value) // what is no JSON equals nothing that is sent
	return value
}

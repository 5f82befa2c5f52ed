package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/rawjson"
)

// maxFairKey bounds the bytes of a fairness key in a lane. A longer one is replaced by its hash.
// The lane is part of the key of index jobs_fetch, which has a limit of about 2.7 kB for an entry, and of every event of the job.
const maxFairKey = 128

// maxMetas bounds the metas that are read at once, of at most 64 KiB each.
// They are read in the deletion of a queue that moves its jobs: 6.25 MiB at most.
const maxMetas = 100

// assignLanes puts jobs of fair queues into the lane of their fairness key, within that of their tenant. What the node does not know
// yet of a queue does no harm: the jobs wait with those without a key.
//
// It may run twice for a job, and keeps the tenant, which is the first part of the lane. A change of the configuration leaves
// stored jobs in their lanes.
func (s *Store) assignLanes(ctx context.Context, db pg.Conn, jobs []*job.Job) {
	if s.isPool(db) {
		_, _ = s.configured.View(ctx) // the first call reads the configurations; the insert itself tells whether the database answers
	}
	for _, j := range jobs {
		if s.isFair(j.Queue) {
			j.Lane = job.Lane(job.TenantOf(j.Lane), s.fairKeyIn(j.Queue, j.Meta))
		}
	}
}

// isFair reports whether a queue has lanes of fairness keys, as far as this node knows.
func (s *Store) isFair(queue string) bool {
	q := s.configured.Known(queue)
	return q != nil && q.Config.Fairness != nil
}

// fairKeyIn is the fairness key that a job with this meta has in a queue; "": none.
func (s *Store) fairKeyIn(queue string, meta []byte) string {
	if q := s.configured.Known(queue); q != nil && q.Config.Fairness != nil {
		return fairKey(q.Config.Fairness, meta)
	}
	return ""
}

// fairKeys are those of stored jobs in a queue, in their order; nil if the queue is not fair.
// A job that has gone meanwhile has the key ""; the statement that moves jobs does not find it either.
func (s *Store) fairKeys(ctx context.Context, queue string, ids [][16]byte) ([]string, error) {
	if !s.isFair(queue) {
		return nil, nil
	}
	keys := make([]string, 0, len(ids))
	for part := range slices.Chunk(ids, maxMetas) {
		rows, err := s.db.Q.JobListMeta(ctx, part)
		if err != nil {
			return nil, err
		}
		found := make(map[[16]byte]string, len(rows))
		for _, r := range rows {
			found[r.ID] = s.fairKeyIn(queue, r.Meta)
		}
		for _, id := range part {
			keys = append(keys, found[id])
		}
	}
	return keys, nil
}

// fairKey is the value of the fairness key in the meta of a job; "": it has none, or the queue is fair between tenants only. The
// function ojs.job_lane is the same in SQL.
// Objects and arrays are no keys. Numbers and booleans are taken as they are written, so 1 and 1.0 are two keys.
func fairKey(f *queueconfig.Fairness, meta []byte) string {
	name, ok := strings.CutPrefix(f.FairKey, "meta.")
	if !ok || len(meta) == 0 {
		return ""
	}
	v := payload.Present(payload.Find(meta, name))
	if v == nil || v[0] == '{' || v[0] == '[' {
		return ""
	}
	key, isText := rawjson.Text(v)
	if !isText {
		key = string(v)
	}
	// NUL cannot be stored in a text of PostgreSQL.
	if len(key) > maxFairKey || strings.ContainsRune(key, 0) {
		sum := sha256.Sum256([]byte(key))
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	return key
}

// weights are those of the lanes of a queue.
// A claim asks for them each time it begins.
func (s *Store) weights(queue string) weights {
	q := s.configured.Known(queue)
	if q == nil || q.Config.Fairness == nil {
		return weights{}
	}
	f := q.Config.Fairness
	return weights{ofTenants: f.FairKey == "tenant", of: f.Weights}
}

package queueadmin

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Create creates a queue; one that exists is a conflict. It is one statement, so of two calls at once one creates the queue
// and the other gets the conflict. It goes on if the client hangs up, so that this node hears of its own change.
func (s *Store) Create(ctx context.Context, name string, change queueconfig.Change) (*Detail, error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	config, wire := change.Apply(nil)
	if wire != nil {
		return nil, wire
	}
	if config != nil {
		// Only a configuration takes room in the memory of nodes.
		if err := s.roomFor(ctx, name); err != nil {
			return nil, pg.ClientError(err)
		}
	}
	rows, err := s.db.Q.QueueCreate(ctx, dbsqlc.QueueCreateParams{Name: name, Config: config, Node: s.commits.Node, Extended: s.config.ExtensionEvents})
	if err != nil {
		return nil, pg.WriteError(err)
	}
	if len(rows) == 0 {
		return nil, spec.QueueExists(name)
	}
	s.committed(ctx, name, s.changed(ctx, ojs.EventQueueCreated, "queue created", name)...)
	return newDetail(dbsqlc.Queue(rows[0])), nil
}

// Configure changes the configuration of a queue, or of queueconfig.Default, and creates the queue if there is none. A change that sets
// nothing anew writes nothing. It merges (docs/reference/queues.md, Configuration), so a repetition changes nothing and
// writes no event. The row is locked between the read and the write: two changes of different fields both hold. Jobs and
// fetches do not wait for that lock.
func (s *Store) Configure(ctx context.Context, name string, change queueconfig.Change) (*Detail, error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	if change.Sets() {
		if err := s.roomFor(ctx, name); err != nil {
			return nil, pg.ClientError(err)
		}
	}
	var row dbsqlc.Queue
	var created, configured bool
	err := pg.Retry(func() error {
		return pg.InTx(ctx, s.db.Pool, func(tx pgx.Tx) (err error) {
			q := dbsqlc.New(tx)
			inserted, err := q.QueueCreate(ctx, dbsqlc.QueueCreateParams{Name: name, Node: s.commits.Node, Extended: s.config.ExtensionEvents})
			if err != nil {
				return err
			}
			// Each try sets both flags anew.
			created = len(inserted) > 0
			row, configured, err = s.configure(ctx, q, name, change)
			return err
		})
	})
	if err != nil {
		return nil, pg.WriteError(err)
	}
	if created {
		s.committed(ctx, name, s.changed(ctx, ojs.EventQueueCreated, "queue created", name)...)
	}
	if configured {
		s.committed(ctx, name, s.changed(ctx, ojs.EventQueueConfigUpdated, "queue configured", name)...)
	}
	return newDetail(row), nil
}

// An unchanged configuration is not written, as every write makes all nodes read.
func (s *Store) configure(ctx context.Context, q *dbsqlc.Queries, name string, change queueconfig.Change) (row dbsqlc.Queue, configured bool, err error) {
	rows, err := q.QueueLock(ctx, name)
	if err != nil {
		return row, false, err
	}
	if len(rows) == 0 { // it was deleted since its row was found
		return row, false, spec.Unavailable()
	}
	config, wire := change.Apply(rows[0].Config)
	if wire != nil {
		return row, false, wire
	}
	// encode gives equal configurations equal bytes.
	if string(config) == string(rows[0].Config) {
		return rows[0], false, nil
	}
	changed, err := q.QueueConfigure(ctx, dbsqlc.QueueConfigureParams{Name: name, Config: config, Node: s.commits.Node, Extended: s.config.ExtensionEvents})
	return dbsqlc.Queue(changed), true, err
}

package embedpg

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// StartStandby copies this server, which must run, and starts the copy as its hot standby. cfg is as for Start; its data directory
// must not have a cluster yet. After pg_promote() it is a server like any other.
// It asks the primary for a checkpoint and copies the files over a connection.
func (s *Server) StartStandby(ctx context.Context, cfg Config) (*Server, error) {
	cfg.primary = s.URL("postgres")
	return Start(ctx, cfg)
}

// baseBackup copies the cluster of the primary into dir, with the settings that make the copy its standby.
func (p *place) baseBackup(ctx context.Context, bin binaries, dir, primary string) error {
	postgres, err := filepath.EvalSymlinks(bin.path("postgres")) // PATH may have links to some of the programs only
	if err != nil {
		return fmt.Errorf("find pg_basebackup: %w", err)
	}
	cmd := p.command(ctx, filepath.Join(filepath.Dir(postgres), "pg_basebackup"), "-d", primary, "-D", dir,
		"--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := runProcess(cmd); err != nil {
		return fmt.Errorf("pg_basebackup: %w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}

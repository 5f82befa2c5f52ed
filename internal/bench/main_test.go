package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/embedpg"
)

// TestMain also plays the children that the load generator starts from its own binary.
func TestMain(m *testing.M) {
	var err error
	switch args := os.Args[1:]; {
	case slices.Equal(args, []string{"bench", "--null-server"}):
		err = ServeNull(os.Stdin, os.Stdout)
	case len(args) == 5 && args[0] == "dev" && args[1] == "--data-dir" && args[3] == "--listen":
		err = playDev(args[2], args[4])
	default:
		dbtest.Main(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// playDev is what the load generator relies on in `ojsd dev`: a private Postgres below dataDir with one database, and
// a server that says when it is ready and ends on SIGINT.
func playDev(dataDir, listen string) error {
	if os.Getenv("DATABASE_URL") != "" {
		return fmt.Errorf("dev would use DATABASE_URL")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pg, err := embedpg.Start(ctx, embedpg.Config{DataDir: dataDir})
	if err != nil {
		return err
	}
	if err := pg.CreateDatabase(ctx, "ojsd"); err != nil {
		return err
	}
	server := &http.Server{Addr: listen, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/readyz" {
			nullHandler(w, req)
		}
	})}
	go func() { _ = server.ListenAndServe() }()
	<-ctx.Done()
	_ = server.Close()
	return pg.Stop(context.Background())
}

package embedpg

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// packageManager is one way to install PostgreSQL: a shell script, so that sudo asks once.
// The script must not start a server of the system.
type packageManager struct {
	program string
	script  string
	asUser  bool // refuses to be run by root
}

// packageManagers in the order they are looked for.
var packageManagers = []packageManager{
	{program: "apt-get", script: aptScript},
	{program: "dnf", script: "dnf install -y postgresql-server"},
	{program: "apk", script: "apk add --no-cache postgresql"},
	{program: "brew", script: "brew install postgresql@17", asUser: true},
}

// aptScript prevents Debian from creating and starting a cluster of the system: it writes a drop-in file for the time of the
// installation and removes it afterwards.
const aptScript = `set -e
export DEBIAN_FRONTEND=noninteractive
dropin=/etc/postgresql-common/createcluster.d
trap 'rm -f $dropin/ojsd.conf' EXIT
mkdir -p $dropin
echo 'create_main_cluster = false' > $dropin/ojsd.conf
apt-get update
apt-get install -y --no-install-recommends postgresql`

// Install installs PostgreSQL with the package manager of the machine, whose output goes to stderr. It does nothing if a
// usable version is installed.
// It runs only if the user asked for it, by `ojsd dev` without --no-install or by make.
func Install(ctx context.Context) error {
	if _, err := findBinaries(0); err == nil {
		return nil
	}
	if err := install(ctx, os.Stderr); err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	_, err := findBinaries(0)
	return err
}

// Without root and sudo it changes nothing and says what to run.
func install(ctx context.Context, out io.Writer) error {
	manager, ok := findManager()
	if !ok {
		return fmt.Errorf("%w, and no package manager that ojsd knows was found: install PostgreSQL %d or newer, "+
			"or set DATABASE_URL to use a server that runs already", ErrNotInstalled, minMajor)
	}
	// One script, so that sudo asks for a password once.
	command := []string{"sh", "-c", manager.script}
	if os.Geteuid() != 0 && !manager.asUser {
		// Images of containers often have none.
		if _, err := exec.LookPath("sudo"); err != nil {
			return fmt.Errorf("%w, and only root may install it: run `%s install postgresql` as root, "+
				"or set DATABASE_URL to use a server that runs already", ErrNotInstalled, manager.program)
		}
		command = append([]string{"sudo"}, command...)
	}
	_, err := fmt.Fprintf(out, "ojsd: PostgreSQL is not installed; installing it with %s\n", manager.program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, out // sudo may ask for a password
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", manager.program, err)
	}
	return nil
}

func findManager() (packageManager, bool) {
	for _, manager := range packageManagers {
		if _, err := exec.LookPath(manager.program); err == nil {
			return manager, true
		}
	}
	return packageManager{}, false
}

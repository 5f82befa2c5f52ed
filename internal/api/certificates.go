package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/config"
)

// certificatesPause is how often changed files are looked for, at most: a handshake costs far more than three calls of stat.
const certificatesPause = time.Second

// Certificates are the TLS files of an interface. They are read again when they change: new connections get the new certificate, those that
// are open go on. While the changed files cannot be used, because one is missing or the key is not yet that of the certificate, the earlier
// ones stay. Use NewCertificates.
type Certificates struct {
	files     config.TLS
	mutual    tls.ClientAuthType
	protocols []string // of ALPN
	logger    *slog.Logger

	// mu is held while files are read, so of handshakes at the same time one reads and the others wait for it.
	mu       sync.Mutex
	lookedAt time.Time
	seen     [3]fileVersion
	current  *tls.Config // never changed, only replaced
	expires  time.Time
	failed   bool // the files have changed, and could not be used
}

// fileVersion tells a changed file from the one that was read.
type fileVersion struct {
	modified time.Time
	size     int64
}

// NewCertificates reads the files. mutual is what is asked of clients if there are certificates of authorities for them. The protocols are
// offered to them by ALPN.
func NewCertificates(files config.TLS, mutual tls.ClientAuthType, logger *slog.Logger, protocols ...string) (*Certificates, error) {
	c := &Certificates{files: files, mutual: mutual, protocols: protocols, logger: logger, lookedAt: time.Now()}
	c.seen = c.versions()
	var err error
	c.current, c.expires, err = c.read()
	return c, err
}

// Server is a configuration for listeners that follows the files.
func (c *Certificates) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: c.protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c.follow()
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.current, nil
		},
	}
}

// Status is Healthy, or Degraded if the certificate has expired or changed files cannot be used. It follows the files by itself: a server
// that nobody calls finds out, too.
func (c *Certificates) Status() string {
	c.follow()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed || time.Now().After(c.expires) {
		return Degraded
	}
	return Healthy
}

// Expires is when the certificate in force ends.
func (c *Certificates) Expires() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expires
}

// follow reads files that have changed since they were read.
func (c *Certificates) follow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.lookedAt) < certificatesPause {
		return
	}
	c.lookedAt = time.Now()
	versions := c.versions()
	if versions == c.seen {
		return
	}
	read, expires, err := c.read()
	if err != nil {
		// They are read again at each look until they can be used; only the first failure is logged.
		if !c.failed {
			c.logger.Error("changed TLS files cannot be used; the earlier certificate stays until they can", slog.String("category", "system"),
				slog.Time("expires", c.expires), slog.Any("error", err))
		}
		c.failed = true
		return
	}
	c.seen, c.current, c.expires, c.failed = versions, read, expires, false
	c.logger.Info("TLS files were read again", slog.String("category", "system"), slog.Time("expires", expires))
}

func (c *Certificates) versions() (v [3]fileVersion) {
	for i, path := range []string{c.files.Cert, c.files.Key, c.files.ClientCA} {
		if info, err := os.Stat(path); err == nil {
			v[i] = fileVersion{info.ModTime(), info.Size()}
		}
	}
	return v
}

// read does not refuse an expired certificate: clients do, and the server must run so that operators can see why.
func (c *Certificates) read() (*tls.Config, time.Time, error) {
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("load TLS certificate: %w", err)
	}
	t := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: c.protocols}
	if c.files.ClientCA != "" {
		if t.ClientCAs, err = readAuthorities(c.files.ClientCA); err != nil {
			return nil, time.Time{}, err
		}
		t.ClientAuth = c.mutual
	}
	return t, pair.Leaf.NotAfter, nil
}

var errNoCertificate = errors.New("it holds no certificate in PEM")

func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load certificates of client authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load certificates of client authorities from %s: %w", path, errNoCertificate)
	}
	return pool, nil
}

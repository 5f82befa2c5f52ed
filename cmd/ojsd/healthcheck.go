package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"
)

// healthcheckCmd is for images without a shell or curl.
// It reads the address from the settings of the server, so the image needs no second one.
type healthcheckCmd struct {
	settings
	Ready   bool          `help:"Ask whether the server can take jobs, its database included."`
	Timeout time.Duration `default:"3s" help:"How long to wait for the answer."`
}

// Run requests /healthz, which answers without the database: an outage of the database is no reason to restart the container.
func (c *healthcheckCmd) Run(ctx context.Context) error {
	loaded, err := c.load()
	if err != nil {
		return err
	}
	// The check runs on the machine of the server.
	address, err := dialAddress(loaded.Config.Server.Listen)
	if err != nil {
		return err
	}
	// Neither path needs a key.
	path := "/healthz"
	if c.Ready {
		path = "/readyz"
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	scheme, client := "http://", http.DefaultClient
	if loaded.Config.Server.TLSCert != "" {
		// The certificate is that of the name under which clients know the server. Whether it has expired is for readiness and doctor.
		scheme, client = "https://", &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // this machine
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+address+path, nil)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	req.Close = true // no second request uses the connection
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	if err := resp.Body.Close(); err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("health check: %s", resp.Status)
	}
	return nil
}

// dialAddress turns a listen address into one to connect to: all interfaces become loopback.
// A named host or address is dialled as it is.
func dialAddress(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("listen address %q: %w", listen, err)
	}
	ip := net.ParseIP(host)
	switch {
	case host == "", ip.Equal(net.IPv4zero):
		host = "127.0.0.1"
	case ip.Equal(net.IPv6unspecified):
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

package egress

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// blockedPrefixes are private, local, reserved and documentation networks, and tunnels into these
// (docs/reference/webhooks.md, URL and address rules). 2001::/23 holds Teredo and 2002::/16 holds 6to4, which carry IPv4
// addresses. 169.254.0.0/16 holds the metadata services of cloud providers.
var blockedPrefixes = prefixes(`
	0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16
	198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
	::/128 ::1/128 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8`)

// nat64 addresses contain an IPv4 address in their last four bytes, which the rules are applied to. The other NAT64 prefix,
// 64:ff9b:1::/48, is blocked as a whole, as its networks choose where the IPv4 address stands.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func prefixes(list string) []netip.Prefix {
	var parsed []netip.Prefix
	for text := range strings.FieldsSeq(list) {
		parsed = append(parsed, netip.MustParsePrefix(text))
	}
	return parsed
}

// Blocked reports whether no connection may be made to the address. It fails closed: an invalid address is blocked. A
// network that the operator allows wins over a blocked one, whatever their sizes.
func (r Rules) Blocked(a netip.Addr) bool {
	if !a.IsValid() {
		return true
	}
	a = plain(a)
	inside := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(blockedPrefixes, inside) && !slices.ContainsFunc(r.AllowNetworks, inside)
}

// plain is the IPv4 address inside an IPv6 address, if there is one, without a zone. Prefixes never contain addresses with
// a zone, so a zone would hide a link-local address.
func plain(a netip.Addr) netip.Addr {
	a = a.WithZone("").Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// parseLiteral reads an address as URLs and C libraries do: also 127.1, 2130706433, 0x7f000001 and 0177.0.0.1. literal means
// that the host must be an address, because its last part is a number; ok, that it is a valid one. A name that Go takes for
// a name and the C library of a proxy for an address would pass the check and then reach the address.
func parseLiteral(host string) (a netip.Addr, literal, ok bool) {
	if strings.Contains(host, ":") {
		a, err := netip.ParseAddr(host)
		return a, true, err == nil && a.Zone() == ""
	}
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	if !numeric(parts[len(parts)-1]) {
		return a, false, false
	}
	if len(parts) > 4 {
		return a, true, false
	}
	var value uint64
	for i, part := range parts {
		n, err := parseNumber(part)
		width := 8 // bits of this part: the last one fills up what is left
		if i == len(parts)-1 {
			width = 8 * (5 - len(parts))
		}
		if err != nil || n >= 1<<width {
			return a, true, false
		}
		value = value<<width | n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true, true
}

// numeric reports whether a part consists of digits, or is a hexadecimal number with 0x. 080 is no valid octal number, but
// browsers and C libraries take such a host for an address, so it is refused and not looked up.
func numeric(part string) bool {
	if part == "" {
		return false
	}
	if _, err := parseNumber(part); err == nil {
		return true
	}
	return strings.Trim(part, "0123456789") == ""
}

// 0x alone is 0, as in the URL standard.
func parseNumber(part string) (uint64, error) {
	lower := strings.ToLower(part)
	switch {
	case strings.HasPrefix(lower, "0x"):
		if lower == "0x" {
			return 0, nil
		}
		return strconv.ParseUint(lower[2:], 16, 64)
	case len(part) > 1 && part[0] == '0':
		return strconv.ParseUint(part[1:], 8, 64)
	}
	return strconv.ParseUint(part, 10, 64)
}

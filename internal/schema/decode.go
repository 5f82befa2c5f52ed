package schema

import (
	"fmt"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// DecodePut reads a registration whose type and version stand in the path. Without a URI the schema gets
// urn:ojs:schema:<type>:<version>. It compiles the document, which may take long; the caller has bounded the size of the
// body.
func DecodePut(key Key, body []byte) (*Registration, *ojs.Error) {
	o, err := open(body)
	if err != nil {
		return nil, err
	}
	// A version of digits in a path counts as a number, as there is no JSON type to tell.
	in := &Registration{Schema: Schema{Info: Info{Key: key, VersionNumber: IsNumber(key.Version)}}}
	if !job.ValidType(key.Type) {
		o.RefuseValue(ojs.ErrInvalidJobType, "type", "a job type such as invoice.render", jsonread.Quote(key.Type))
	}
	if !ValidVersion(key.Version) {
		o.RefuseValue(ojs.ErrInvalidPayload, "version", versionExpected, jsonread.Quote(key.Version))
	}
	in.URI = "urn:ojs:schema:" + key.Type + ":" + key.Version
	if o.Get("uri") != nil {
		in.URI = readURI(&o)
	}
	return finish(&o, in)
}

// DecodeRegistration reads a registration that names everything in its body, as SDKs send it. The URI is required here,
// unlike in DecodePut.
func DecodeRegistration(body []byte) (*Registration, *ojs.Error) {
	o, err := open(body)
	if err != nil {
		return nil, err
	}
	in := &Registration{}
	in.URI = readURI(&o)
	in.Type, _ = jsonread.Text(o.Get("type"))
	if !job.ValidType(in.Type) {
		o.RefuseValue(ojs.ErrInvalidJobType, "type", "a job type such as invoice.render", o.Get("type"))
	}
	// The version is echoed with the JSON type that it was sent with. 1 and "1" are the same version (docs/reference/schemas.md,
	// Registration object).
	version := o.Get("version")
	in.Version, _ = jsonread.Text(version)
	if version != nil && version[0] != '"' {
		in.Version, in.VersionNumber = string(version), true
	}
	if !ValidVersion(in.Version) || in.VersionNumber && !IsNumber(in.Version) {
		o.Refuse("version", versionExpected)
	}
	return finish(&o, in)
}

func open(body []byte) (jsonread.Object, *ojs.Error) {
	o, err := jsonread.OpenBody(body, "uri", "type", "version", "schema", "enforce")
	o.RefuseOthers("created_at")
	return o, err
}

// readURI reads what is shown in paths and errors, and must be unique in the database.
func readURI(o *jsonread.Object) string {
	text, _ := jsonread.Text(o.Get("uri"))
	if len(text) > maxURIBytes || !job.AbsoluteURI(text) {
		o.Refuse("uri", fmt.Sprintf("an absolute URI of at most %d bytes, such as urn:example:invoice:v1", maxURIBytes))
	}
	return text
}

const versionExpected = "an integer >= 0, or a string of letters, digits and . _ + - that starts with a letter or digit, at most 128 bytes long"

// finish reads the document, last of all: compiling it takes longest. The compiled form is thrown away: it belongs to a
// registration that may still be refused.
func finish(o *jsonread.Object, in *Registration) (*Registration, *ojs.Error) {
	if o.Get("enforce") != nil {
		enforce := o.Boolean("enforce")
		in.Enforce = &enforce
	}
	document := o.Get("schema")
	if document == nil || document[0] != '{' {
		o.Refuse("schema", "a JSON Schema, an object")
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	// The size is that of the document as sent, with its white space.
	if len(document) > MaxBytes {
		return nil, spec.TooLarge("schema", MaxBytes, len(document))
	}
	in.Document = jsonread.Compact(document)
	c, invalid := compile(in.Info, in.Document)
	if invalid != nil { // it names the place in the document, where the compiler tells it
		wire := spec.InvalidPayload("schema", "a JSON Schema", nil, "The schema cannot be used: "+invalid.Error()+".")
		return nil, spec.With(wire, "validation_errors", []jsonread.Violation{{Path: "$.schema", Message: invalid.Error()}})
	}
	if c.older {
		in.ReadAs = "http://json-schema.org/draft-07/schema#"
	}
	return in, nil
}

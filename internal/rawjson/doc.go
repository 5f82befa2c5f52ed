// Package rawjson owns the reading of client JSON without decoding it. Check validates a body once, with jsontext. All other
// functions walk valid text, so that number literals and escapes survive and no part is parsed twice.
//
// Only Check may be called with text that Check has not accepted: the other functions do not detect syntax errors.
package rawjson

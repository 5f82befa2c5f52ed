// Package rawjson reads client JSON without interpreting more of it than needed. Check validates a body once, with
// jsontext; everything else walks text that is known to be valid, so that literals survive and nothing is parsed twice.
//
// No function here but Check may be given text that has not been through Check: they do not look for syntax errors.
package rawjson

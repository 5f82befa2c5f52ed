package job

import "github.com/ojsd/ojsd/ojs"

// stage is the HTTP status that answers a refusal, which says which stage of the checks has made it.
func stage(e *ojs.Error) int {
	switch ojs.ErrorKind(e.Type) {
	case ojs.ErrPayloadTooLarge, ojs.ErrMetadataTooLarge, ojs.ErrBatchSize:
		return 413
	case ojs.ErrValidation, ojs.ErrUnsupported:
		return 422
	case ojs.ErrNotFound:
		return 404
	}
	return 400
}

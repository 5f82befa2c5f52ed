package job

import "github.com/ojsd/ojsd/ojs"

// stage is the HTTP status that answers a refusal, which says which stage of the checks has made it.
func stage(e *ojs.Error) int {
	switch ojs.ErrorKind(e.Type) {
	case ojs.KindPayloadTooLarge, ojs.KindMetadataTooLarge, ojs.KindBatchSize:
		return 413
	case ojs.KindValidation, ojs.KindUnsupported:
		return 422
	case ojs.KindNotFound:
		return 404
	}
	return 400
}

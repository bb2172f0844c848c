// The rows of the family table, one per file of this folder.
#ifndef HEADWISE_MODEL_FAMILIES_FAMILIES_H_
#define HEADWISE_MODEL_FAMILIES_FAMILIES_H_

#include "model/families/family.h"

namespace headwise {

extern const ModelFamily kLlamaFamily;
extern const ModelFamily kMistralFamily;
extern const ModelFamily kQwen2Family;
extern const ModelFamily kGptNeoxFamily;
extern const ModelFamily kFalconFamily;
extern const ModelFamily kMptFamily;
extern const ModelFamily kBaichuanFamily;

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_FAMILIES_H_

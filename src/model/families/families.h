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
extern const ModelFamily kQwen3Family;
extern const ModelFamily kGemma2Family;
extern const ModelFamily kGemma3Family;
extern const ModelFamily kPhi3Family;
extern const ModelFamily kPhiFamily;
extern const ModelFamily kOlmo2Family;
extern const ModelFamily kGraniteFamily;
extern const ModelFamily kStarcoder2Family;
extern const ModelFamily kStableLmFamily;
extern const ModelFamily kCohereFamily;
extern const ModelFamily kSmolLm3Family;
extern const ModelFamily kGlm4Family;
extern const ModelFamily kGpt2Family;
extern const ModelFamily kMixtralFamily;
extern const ModelFamily kQwen3MoeFamily;
extern const ModelFamily kQwen2MoeFamily;
extern const ModelFamily kOlmoeFamily;
extern const ModelFamily kGraniteMoeFamily;
extern const ModelFamily kGptOssFamily;

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_FAMILIES_H_

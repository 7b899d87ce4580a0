// The definition of each number format: one value in, one code out, and back. Everything faster (codec_kernels.h,
// the attention kernels) must give these bits.

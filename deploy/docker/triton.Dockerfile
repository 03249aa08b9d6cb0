# The predictor: NVIDIA's server with the backends that our models need. Built by `make images`.
# An init container fetches and verifies a version's repository, into a volume that the server reads.
ARG TRITON_DIGEST

# 26.10 of October 2026; the remote flaws of NVIDIA's bulletin 5828 (20 May 2026, CVE-2026-24206 to 24209) are older.
FROM nvcr.io/nvidia/tritonserver:26.10-py3@${TRITON_DIGEST} AS server
# What cannot be loaded cannot be attacked: no backend that runs Python or another framework's graphs stays.
RUN find /opt/tritonserver/backends -mindepth 1 -maxdepth 1 ! -name onnxruntime ! -name fil -exec rm -rf {} + \
    && rm -rf /opt/tritonserver/repoagents /opt/tritonserver/clients /workspace

# Copied whole into an empty image, since a layer that deletes makes nothing smaller.
FROM scratch
ARG CODE_VERSION
ARG REVISION
LABEL org.opencontainers.image.title="shortlist-triton" \
      org.opencontainers.image.description="Shortlist: Triton Inference Server with ONNX Runtime and FIL" \
      org.opencontainers.image.version="${CODE_VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="nvcr.io/nvidia/tritonserver:26.10-py3"
# hadolint ignore=DL3067
COPY --from=server / /
# An empty image inherits no variables: these are the server's own.
ENV PATH=/opt/tritonserver/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LD_LIBRARY_PATH=/opt/tritonserver/lib:/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    HOME=/tmp \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
USER 1000:1000
ENTRYPOINT ["tritonserver"]
CMD ["--model-repository=/mnt/models", "--model-control-mode=none", "--disable-auto-complete-config"]

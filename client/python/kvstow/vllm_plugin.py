"""Makes the connector known to vLLM by its name (entry point vllm.general_plugins).

With the package installed, `--kv-transfer-config` needs no kv_connector_module_path.
"""

from __future__ import annotations


def register() -> None:
    """vLLM calls it in each of its processes."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "KvstowConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("KvstowConnector", "kvstow.vllm", "KvstowConnector")

# SPDX-License-Identifier: MIT
"""A broker that speaks TLS and SASL: a CA, certificates in PEM (what openssl makes), and two more listeners.

    with TlsCluster(folder, topics=["t:4"]) as kafka:
        ... kafka.ssl (client certificate required), kafka.sasl_ssl (SASL over TLS), kafka.files ...
"""

import os
import subprocess

from broker import free_ports, java
from cluster import Cluster

USER, PASSWORD = "millrace", "secret word"


def openssl(*args):
    subprocess.run(["openssl", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)


def make_ca(folder, name="ca"):
    """folder/NAME.pem and .key"""
    base = os.path.join(folder, name)
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN=test {name}", "-keyout", base + ".key",
            "-out", base + ".pem")
    return base + ".pem"


def make_certificate(folder, name, ca="ca", password=None):
    """folder/NAME.pem and .key (with a password: encrypted), signed by the CA, for 127.0.0.1."""
    base, ca = os.path.join(folder, name), os.path.join(folder, ca)
    hidden = ["-aes256", "-pass", f"pass:{password}"] if password else []
    openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", base + ".key", *hidden)
    shown = ["-passin", f"pass:{password}"] if password else []
    openssl("req", "-new", "-key", base + ".key", *shown, "-subj", f"/CN={name}", "-out", base + ".csr")
    with open(base + ".ext", "w", encoding="ascii") as f:
        f.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl("x509", "-req", "-in", base + ".csr", "-CA", ca + ".pem", "-CAkey", ca + ".key", "-CAcreateserial", "-days", "2",
            "-extfile", base + ".ext", "-out", base + ".pem")
    return base + ".pem"


class TlsCluster(Cluster):
    """One broker. SASL: PLAIN, OAUTHBEARER with unsecured tokens, and SCRAM-SHA-512 after add_scram()."""

    def __init__(self, folder, **kwargs):
        super().__init__(**kwargs)
        self.files = str(folder)
        make_ca(self.files)
        make_certificate(self.files, "broker")
        make_certificate(self.files, "client")
        with open(os.path.join(self.files, "broker.both"), "w", encoding="ascii") as both:
            for name in ("broker.key", "broker.pem"):
                with open(os.path.join(self.files, name), encoding="ascii") as f:
                    both.write(f.read())

    def file(self, name):
        return os.path.join(self.files, name)

    def format(self):
        plain, controller = self.brokers[1].listeners.split(",")
        self.ssl, self.sasl_ssl = (f"127.0.0.1:{port}" for port in free_ports(2))
        more = f"SSL://{self.ssl},SASL_SSL://{self.sasl_ssl}"
        login = "org.apache.kafka.common.security"
        self.configs = {
            "listeners": f"{plain},{more},{controller}", "advertised.listeners": f"{plain},{more}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": self.file("broker.both"),
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self.file("ca.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.sasl_ssl.plain.sasl.jaas.config":
                f'{login}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
            "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config":
                f'{login}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
            "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class":
                f"{login}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
            **self.configs}
        super().format()

    def add_scram(self):
        """The same user for SCRAM-SHA-512."""
        subprocess.run(java("kafka.admin.ConfigCommand", "--bootstrap-server", self.bootstrap, "--alter", "--add-config",
                            f"SCRAM-SHA-512=[password={PASSWORD}]", "--entity-type", "users", "--entity-name", USER),
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)

{{/*
How a pod gets at the store: keys by reference to the user's Secret, whose values never pass through Helm; an identity that the cloud
puts into the pod; or a token of the account, mounted here and exchanged at an STS.
*/}}
{{- define "common.s3Credentials" -}}
{{- $s3 := .Values.global.s3 }}
{{- if eq $s3.credentials "secret" }}
{{- range $key := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" }}
- name: {{ $key }}
  valueFrom:
    secretKeyRef:
      name: {{ $s3.existingSecret }}
      key: {{ $key }}
      {{- if eq $key "AWS_SESSION_TOKEN" }}
      optional: true
      {{- end }}
{{- end }}
{{- else if eq $s3.credentials "token" }}
- name: AWS_WEB_IDENTITY_TOKEN_FILE
  value: /var/run/secrets/rolecast/s3/token
{{- with $s3.token.roleArn }}
- name: AWS_ROLE_ARN
  value: {{ . | quote }}
{{- end }}
{{- with $s3.token.stsEndpoint }}
- name: AWS_ENDPOINT_URL_STS
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- if $s3.caConfigMap }}
- name: AWS_CA_BUNDLE
  value: /etc/rolecast/s3-ca/ca.crt
{{- end }}
{{- end }}

{{- define "common.s3Mounts" -}}
{{- if eq .Values.global.s3.credentials "token" }}
- name: s3-token
  mountPath: /var/run/secrets/rolecast/s3
  readOnly: true
{{- end }}
{{- if .Values.global.s3.caConfigMap }}
- name: s3-ca
  mountPath: /etc/rolecast/s3-ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "common.s3Volumes" -}}
{{- if eq .Values.global.s3.credentials "token" }}
- name: s3-token
  projected:
    sources:
      - serviceAccountToken:
          audience: {{ .Values.global.s3.token.audience | quote }}
          expirationSeconds: 3600
          path: token
{{- end }}
{{- with .Values.global.s3.caConfigMap }}
- name: s3-ca
  configMap:
    name: {{ . }}
{{- end }}
{{- end }}
